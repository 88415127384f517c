"use strict";
// Charts: their common style, and a list of those on the page so that they can be redrawn.

const drawn = []; // { node, card, make, chart } of every chart on the page

const RAMPS = {
  light: ["#f3f6fa", "#cfe1f2", "#93c3df", "#4b97c9", "#1c68a8", "#0b3c70"],
  dark: ["#1b222c", "#1d3f5e", "#24648f", "#3b8dbd", "#79bde3", "#d4edff"],
};
const ramp = () => RAMPS[state.theme];

/** Put a chart into a card. `make` returns the ECharts option, or null if there is nothing to show; that hides the card. */
function chart(card, make, { tall = 320, small = null, label = "" } = {}) {
  const node = el("div", { class: "chart", role: "img", "aria-label": label });
  card.append(node);
  const item = { node, card, make, tall, small: small || tall, chart: null };
  drawn.push(item);
  return { draw: () => draw(item), node };
}

/** Draw one chart for the current state. */
function draw(item) {
  const option = item.make();
  item.node.hidden = option === null;
  const charts = drawn.filter((other) => other.card === item.card);
  item.card.hidden = charts.every((other) => other.node.hidden) && !item.card.dataset.keep;
  if (option === null) return;
  const { renderer = "svg", tall, ...rest } = option;
  item.node.style.setProperty("--tall", `${tall || (phone() ? item.small : item.tall)}px`);
  if (!item.chart) item.chart = echarts.init(item.node, null, { renderer });
  else item.chart.resize();
  const printing = document.documentElement.classList.contains("printing");
  item.chart.setOption({ ...LOOK(), ...rest, ...(printing ? { animation: false } : {}) }, { notMerge: true });
  if (printing) item.chart.getZr().flush();
}

/** Redraw everything: after a toggle, a change of the theme or of the window's width. */
function redraw() {
  drawn.forEach(draw);
}

/** Remove all charts. */
function clear() {
  drawn.forEach((item) => item.chart && item.chart.dispose());
  drawn.length = 0;
}

/** Return a marker by its name in the palette. */
const marker = (name) =>
  ({ down: "path://M0,0H10L5,9Z", plus: "path://M4,0h4v4h4v4h-4v4h-4v-4h-4v-4h4z" })[name] || name;

/** Return the options that all charts share. */
function LOOK() {
  return {
    backgroundColor: "transparent",
    textStyle: { fontFamily: css("--font"), color: css("--soft"), fontSize: 12 },
    animationDuration: 350,
    animationDurationUpdate: 250,
    tooltip: tooltip(),
  };
}

/** Return the style of tooltips. */
function tooltip(more = {}) {
  return {
    confine: true,
    backgroundColor: css("--card"),
    borderColor: css("--line"),
    padding: [8, 12],
    textStyle: { color: css("--ink"), fontSize: 12.5 },
    extraCssText: "box-shadow:0 6px 24px rgb(0 0 0 / 16%);border-radius:10px;max-width:320px;white-space:normal",
    ...more,
  };
}

/** Return the HTML of a tooltip: a heading and rows of [name, value, optional colour]. */
function tip(heading, rows) {
  const lines = rows.map(
    ([name, value, colour]) =>
      `<div style="display:flex;gap:16px;justify-content:space-between"><span>${colour ? `<i style="display:inline-block;width:8px;height:8px;border-radius:50%;background:${safe(colour)};margin-right:6px"></i>` : ""}${safe(name)}</span><b style="font-weight:600;white-space:nowrap">${safe(value)}</b></div>`,
  );
  return `<div style="color:${css("--soft")};margin-bottom:3px">${safe(heading)}</div>${lines.join("")}`;
}

/** Return an axis in the style of the page. */
function axis(more = {}) {
  const { axisLabel = {}, splitLine = {}, nameTextStyle = {}, ...rest } = more;
  return {
    type: "value",
    nameLocation: "middle",
    nameGap: 30,
    nameTextStyle: { color: css("--soft"), fontSize: 12, ...nameTextStyle },
    axisLine: { show: false },
    axisTick: { show: false },
    axisLabel: { color: css("--faint"), fontSize: 11.5, hideOverlap: true, ...axisLabel },
    splitLine: { lineStyle: { color: css("--grid") }, ...splitLine },
    ...rest,
  };
}

/** Return an axis of names. */
function names(list, more = {}) {
  const { axisLabel = {}, ...rest } = more;
  return axis({ type: "category", data: list, splitLine: { show: false }, axisLabel: { ...axisLabel }, ...rest });
}

/** Return a horizontal title above a y axis. */
function upright(name) {
  return {
    name,
    nameLocation: "end",
    nameGap: 12,
    nameTextStyle: { align: "left", color: css("--soft"), fontSize: 12 },
  };
}

/** Shorten the name of a method on a phone; `besides` returns the left margin that such names need. */
const narrow = (name) =>
  name.length <= 15 || !phone() ? short(name, 30) : name.includes(":") ? `…${name.slice(-14)}` : short(name, 15);
const besides = (list) => ({ left: 14 + 6.7 * Math.max(...list.map((name) => narrow(name).length)) });

/** Return a shaded band between low and high. */
function band(xs, low, high, colour, opacity = 0.14) {
  const points = xs.map((x, i) => [x, low[i], high[i]]).filter(([, a, b]) => known(a) && known(b));
  return {
    type: "custom",
    silent: true,
    clip: true,
    z: 1,
    tooltip: { show: false },
    data: points,
    encode: { x: 0, y: [1, 2] },
    renderItem: ({ dataIndexInside }, api) =>
      dataIndexInside
        ? null
        : {
            type: "polygon",
            shape: {
              points: [
                ...points.map(([x, , b]) => api.coord([x, b])),
                ...points.map(([x, a]) => api.coord([x, a])).reverse(),
              ],
            },
            style: { fill: colour, opacity },
          },
  };
}

/** Return error bars of one standard deviation with a text beside them, from rows of [place, mean, std, text]. */
function whiskers(rows, vertical = false) {
  return {
    type: "custom",
    silent: true,
    z: 5,
    tooltip: { show: false },
    data: rows.map(([place, mean, std]) => [place, mean, std || 0]),
    encode: vertical ? { x: 0, y: 1 } : { x: 1, y: 0 },
    renderItem: ({ dataIndex }, api) => {
      const [place, mean, std] = [api.value(0), api.value(1), api.value(2)];
      const [a, b] = [mean - std, mean + std].map((v) => api.coord(vertical ? [place, v] : [v, place]));
      const line = (x1, y1, x2, y2) => ({
        type: "line",
        shape: { x1, y1, x2, y2 },
        style: { stroke: css("--ink"), lineWidth: 1.2, opacity: 0.75 },
      });
      const [dx, dy] = vertical ? [4, 0] : [0, 4];
      const text = {
        type: "text",
        x: b[0] + 9,
        y: b[1],
        style: {
          text: rows[dataIndex][3] || "",
          fill: css("--ink"),
          font: `12px ${css("--font")}`,
          verticalAlign: "middle",
        },
      };
      const marks = std > 0 ? [line(...a, ...b), ...[a, b].map(([x, y]) => line(x - dx, y - dy, x + dx, y + dy))] : [];
      return { type: "group", children: [...marks, text] };
    },
  };
}

/** Return coloured cells from [column, row, value]. ECharts' own heatmap draws over several frames, too late for printing. */
function cells(data, write = null, shade = null) {
  const [gap, r] = [data.length > 3000 ? 0 : 1, data.length > 1200 ? 0 : 2];
  return {
    type: "custom",
    data,
    progressive: 0,
    encode: { x: 0, y: 1, tooltip: 2 },
    renderItem: (_, api) => {
      const [x, y] = api.coord([api.value(0), api.value(1)]);
      const [width, height] = api.size([1, 1]);
      const rect = {
        type: "rect",
        shape: {
          x: x - width / 2,
          y: y - height / 2,
          width: width - gap + (gap ? 0 : 0.4),
          height: height - gap + (gap ? 0 : 0.4),
          r,
        },
        style: { fill: api.visual("color") },
        emphasis: { style: { stroke: css("--ink"), lineWidth: 1 } },
      };
      // A number needs this much room; without it, there is the tooltip.
      if (!write || width < 19 || height < 13) return rect;
      const value = api.value(2);
      const text = {
        type: "text",
        silent: true,
        style: {
          x: x - gap / 2,
          y: y - gap / 2,
          text: write(value),
          fill: shade(value),
          font: `${width < 28 ? 10 : 12}px ${css("--font")}`,
          align: "center",
          verticalAlign: "middle",
        },
      };
      return { type: "group", children: [rect, text] };
    },
  };
}

/** Return a heatmap of rows × columns. */
function heat({ xs, ys, value, text, low = 0, high, xname, yname, tall, digits = 2, write = null }) {
  const data = [];
  for (let y = 0; y < ys.length; y += 1) {
    for (let x = 0; x < xs.length; x += 1) if (known(value(x, y))) data.push([x, y, value(x, y)]);
  }
  const wide = Math.min(120, 14 + 6.4 * Math.max(...ys.map((name) => short(name).length)));
  const long = Math.max(...xs.map((name) => name.length)) > 6;
  return {
    renderer: "canvas",
    tall,
    animation: false,
    grid: { left: Math.max(wide + 4, long ? 60 : 0), right: 8, top: 8, bottom: long ? 128 : 84 },
    tooltip: tooltip({ formatter: ({ data: [x, y, v] }) => text(x, y, v) }),
    xAxis: names(xs, {
      name: xname,
      nameGap: long ? 72 : 26,
      axisLabel: { formatter: (name) => short(name, 12), rotate: long ? 45 : 0 },
    }),
    yAxis: names(ys, { name: yname, nameGap: wide, inverse: true, axisLabel: { formatter: (name) => short(name) } }),
    visualMap: {
      type: "continuous",
      min: low,
      max: high,
      dimension: 2,
      orient: "horizontal",
      left: "center",
      bottom: 0,
      itemWidth: 9,
      itemHeight: 130,
      precision: digits,
      text: [fixed(high, digits), fixed(low, digits)],
      inRange: { color: ramp().slice(1) },
      textStyle: { color: css("--faint"), fontSize: 11 },
    },
    series: [cells(data, write, (v) => inkOn((v - low) / Math.max(high - low, 1e-9)))],
  };
}

/** Return the colour of a text on a cell: the ramp runs from light to dark, or the other way in the dark theme. */
const inkOn = (share) => ((state.theme === "dark") === share > 0.55 ? "#10161d" : "#ffffff");

/** Return the limits of an axis with some room around the values. */
function range(values, { low = -Infinity, high = Infinity, least = 1 } = {}) {
  const good = values.filter(known);
  const [a, b] = [Math.min(...good), Math.max(...good)];
  const room = Math.max(least, 0.12 * (b - a));
  return { min: Math.max(low, Math.floor(a - room)), max: Math.min(high, Math.ceil(b + room)) };
}
