"use strict";
// The data set and the clients.

/** Training images per client and class: a disc per cell, or coloured cells if there are many. */
function dataSection(add) {
  const { map } = group();
  if (!map) return null;
  const n = map.numbers;
  const some =
    map.clients.length < n.clients
      ? ` Shown: ${map.clients.length} of ${whole(n.clients)} clients, evenly spaced.`
      : "";
  const { card, grid } = add(
    "data",
    "Data",
    `${whole(n.images)} training images. Each client has ${whole(n.smallest)} to ${whole(n.largest)} of them, from ${fixed(n.classes_held, 1)} classes on average. ${known(n.imbalance) ? `The largest class has ${fixed(n.imbalance, 1)} times as many images as the smallest` : "Some classes have no images"}.${some}`,
  );
  const place = card(
    "",
    "Training images per client and class",
    `Split of seed ${map.seed}. The bars on the right are totals over all clients.`,
  );
  grid.append(place);
  const [clients, classes] = [map.clients.length, map.names.length];
  const tall = Math.min(720, 110 + 24 * classes);
  chart(
    place,
    () => {
      const filled = [];
      for (let k = 0; k < clients; k += 1)
        for (let c = 0; c < classes; c += 1) if (map.counts.at(k, c) > 0) filled.push([k, c, map.counts.at(k, c)]);
      const most = filled.reduce((top, cell) => Math.max(top, cell[2]), 1);
      const discs = clients * classes <= 2500;
      const wide = Math.min(118, 12 + 6.6 * Math.max(...map.names.map((name) => short(name).length)));
      const side = phone() ? 46 : 110;
      const room = Math.min((place.clientWidth - wide - side - 40) / clients, (tall - 80) / classes);
      const text = ({ data }) =>
        tip(`${clientTitle(map.clients[data[0]])}, class ${map.names[data[1]]}`, [["training images", whole(data[2])]]);
      return {
        renderer: "canvas",
        tall,
        animation: false,
        grid: [
          { left: wide + 14, right: side + 24, top: 10, bottom: 50 },
          { right: 12, width: side, top: 10, bottom: 50 },
        ],
        tooltip: tooltip({ formatter: text }),
        xAxis: [
          names(map.clients.map(clientLabel), { name: "client", splitLine: { show: discs } }),
          axis({
            gridIndex: 1,
            name: "images",
            nameGap: 26,
            splitNumber: 2,
            axisLabel: { formatter: (v) => (v >= 1000 ? `${v / 1000}k` : v) },
          }),
        ],
        yAxis: [
          names(map.names, {
            inverse: true,
            splitLine: { show: discs },
            axisLabel: { formatter: (name) => short(name) },
          }),
          names(map.names, { gridIndex: 1, inverse: true, axisLabel: { show: false } }),
        ],
        visualMap: {
          show: false,
          min: 0,
          max: most,
          dimension: 2,
          seriesIndex: 0,
          inRange: { color: ramp().slice(2) },
        },
        series: [
          discs
            ? {
                type: "scatter",
                data: filled,
                symbolSize: ([, , v]) => Math.max(3, Math.min(34, 0.98 * room) * Math.sqrt(v / most)),
              }
            : cells(filled),
          {
            type: "bar",
            xAxisIndex: 1,
            yAxisIndex: 1,
            data: map.totals,
            barMaxWidth: 12,
            itemStyle: { color: ramp()[3], borderRadius: [0, 3, 3, 0] },
            tooltip: { formatter: ({ name, value }) => tip(`class ${name}`, [["training images", whole(value)]]) },
          },
        ],
      };
    },
    { label: "training images per client and class" },
  );
  return null;
}

/** Accuracy of every client, and the clients with the lowest accuracy. */
function clientsSection(add) {
  const d = group().details;
  if (!d.some((one) => Object.keys(one.clients).length)) return null;
  const { card, grid } = add(
    "clients",
    "Clients",
    `Each mark is a client. Its accuracy weights every class by its share in the client’s own data. One seed per method.`,
  );
  const many = entries().length > 4;
  const left = card(many ? "w7" : "", "Accuracy of every client");
  grid.append(left);
  chart(
    left,
    () => {
      const used = entries()
        .map((_, i) => i)
        .filter((i) => shown(i) && d[i].clients[state.protocol]);
      if (!used.length) return null;
      const series = used.map((i, row) => {
        const list = d[i].clients[state.protocol];
        return {
          type: "scatter",
          name: entries()[i].label,
          symbol: marker(entries()[i].symbol),
          symbolSize: list.length > 60 ? 6 : 9,
          clip: false,
          itemStyle: { color: entries()[i].colour, opacity: 0.62 },
          data: list.map((v, k) => [100 * v, row, k]).filter(([, , k]) => known(list[k])),
        };
      });
      const middles = used.map((i, row) => {
        const list = d[i].clients[state.protocol].filter(known);
        return [row, (100 * list.reduce((a, b) => a + b, 0)) / list.length];
      });
      const tick = {
        type: "custom",
        silent: true,
        z: 6,
        tooltip: { show: false },
        data: middles,
        encode: { x: 1, y: 0 },
        renderItem: (_, api) => {
          const [x, y] = api.coord([api.value(1), api.value(0)]);
          const half = 0.34 * api.size([0, 1])[1];
          return {
            type: "line",
            shape: { x1: x, y1: y - half, x2: x, y2: y + half },
            style: { stroke: css("--ink"), lineWidth: 2 },
          };
        },
      };
      return {
        tall: many && !phone() ? Math.max(620, 70 + 46 * used.length) : 70 + 50 * used.length,
        grid: { ...besides(used.map((i) => entries()[i].label)), right: 18, top: 8, bottom: 44 },
        tooltip: tooltip({
          formatter: ({ seriesName, data }) => tip(clientTitle(data[2]), [[seriesName, `${fixed(data[0], 1)} %`]]),
        }),
        xAxis: axis({
          name: "accuracy of a client, %; the line is the mean",
          max: 100,
          min: Math.max(0, Math.floor(Math.min(...series.flatMap((one) => one.data.map(([v]) => v))) / 10) * 10),
        }),
        yAxis: names(
          used.map((i) => entries()[i].label),
          {
            inverse: true,
            jitter: 28,
            jitterOverlap: true,
            splitLine: { show: true },
            axisLabel: { color: css("--ink"), fontSize: 12, formatter: narrow },
          },
        ),
        series: [...series, tick],
      };
    },
    { label: "accuracies of all clients by method" },
  );
  const right = card(
    many ? "w5" : "",
    "Worst clients",
    "The clients with the lowest accuracy. Each bar shows a client’s data: the width of a part is the share of a class, its colour the recall.",
  );
  const having = entries()
    .map((_, i) => i)
    .filter((i) => Object.keys(d[i].worst).length);
  if (!having.length) return null;
  let chosen = Math.max(
    0,
    having.findIndex((i) => entries()[i].label === "cafedcl"),
  );
  const box = el("div", { class: many ? "worst" : "worst wide" });
  const update = () => {
    const list = d[having[chosen]].worst[state.protocol];
    right.hidden = !having.some((i) => d[i].worst[state.protocol]);
    box.replaceChildren(
      ...(list
        ? list.map(worstClient)
        : [el("p", { class: "note" }, `${entries()[having[chosen]].label} is not scored this way.`)]),
    );
  };
  if (having.length > 1)
    right.querySelector("header").append(
      picker(
        having.map((i) => entries()[i].label),
        chosen,
        (i) => {
          chosen = i;
          update();
        },
        "method",
      ),
    );
  right.append(box, el("div", { class: "key" }, "recall 0", el("i", { class: "ramp" }), "100 %"));
  grid.append(right);
  return () => {
    right.querySelector(".ramp").style.background = `linear-gradient(90deg, ${reds().join(",")})`;
    update();
  };
}

const reds = () =>
  state.theme === "dark" ? ["#b0432f", "#7a5b3a", "#4a6b8a", "#79bde3"] : ["#d7553a", "#f0b38a", "#a9cfe6", "#3a86bd"];

/** Return a colour between those of a ramp. */
function shade(share, colours) {
  const place = Math.max(0, Math.min(1, share)) * (colours.length - 1);
  const at = Math.min(Math.floor(place), colours.length - 2);
  const [a, b] = [colours[at], colours[at + 1]].map((hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)));
  return `rgb(${a.map((v, i) => Math.round(v + (b[i] - v) * (place - at))).join(" ")})`;
}

/** Return black or white, whichever is readable on a colour. */
function onto(colour) {
  const [r, g, b] = colour.match(/\d+/g).map((v) => (v / 255) ** 2.2);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.3 ? "#14181f" : "#ffffff";
}

/** Build the bar of one client: its classes, their recall, and its confidence. */
function worstClient({ client, accuracy, images, classes, counts, recall, confidence }) {
  const title = (c) => group().map.names[c];
  const trust = confidence;
  const bar = el(
    "div",
    { class: "parts" },
    classes.map((c, i) => {
      const words = `class ${title(c)}: ${counts[i]} images, recall ${known(recall[i]) ? fixed(100 * recall[i], 0) + " %" : "unknown"}${trust && known(trust[i]) ? `, confidence ${fixed(trust[i])}` : ""}`;
      const colour = known(recall[i]) ? shade(recall[i], reds()) : css("--fill");
      return el(
        "span",
        {
          style: `flex:${counts[i]};background:${colour};color:${known(recall[i]) ? onto(colour) : css("--ink")}`,
          title: words,
        },
        counts[i] / images > 0.09 ? short(title(c), 10) : "",
      );
    }),
  );
  const rest = images - counts.reduce((a, b) => a + b, 0);
  if (rest > 0)
    bar.append(
      el(
        "span",
        {
          style: `flex:${rest};background:${css("--fill")};color:${css("--soft")}`,
          title: `other classes: ${rest} images`,
        },
        "others",
      ),
    );
  const lost = classes
    .map((c, i) => ({ c, i, miss: known(recall[i]) ? (counts[i] * (1 - recall[i])) / images : 0 }))
    .sort((a, b) => b.miss - a.miss)[0];
  const why =
    lost && lost.miss > 0
      ? `Loses ${fixed(100 * lost.miss, 1)} points on class ${title(lost.c)} (${fixed((100 * counts[lost.i]) / images, 0)} % of its ${whole(images)} images), where recall is ${fixed(100 * recall[lost.i], 0)} %${trust && known(trust[lost.i]) ? `, confidence ${fixed(trust[lost.i])}` : ""}.`
      : `${whole(images)} images.`;
  return el(
    "div",
    {},
    el("div", { class: "top" }, el("b", {}, clientTitle(client)), el("span", {}, `${fixed(100 * accuracy, 1)} %`)),
    bar,
    el("div", { class: "why" }, why),
  );
}
