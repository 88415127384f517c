"use strict";
// Prototypes and the bias loop, with sliders over rounds.

/** Global prototypes projected to a plane, and the distances between them. */
function prototypesSection(add) {
  const { prototypes: scenes, map } = group();
  if (!scenes || !scenes.length) return null;
  const { card, grid } = add(
    "prototypes",
    "Prototypes",
    "Global prototypes, projected to the first two principal components. All rounds share one projection, so a path shows real movement.",
  );
  const left = card(
    "w6",
    "Projection",
    "Each disc is a class; its trail shows earlier rounds. Prototypes are scaled to length 1.",
  );
  const right = card(
    "w6",
    "Distances between classes",
    "Mean over all pairs; the band reaches from the closest to the farthest pair. The dashed line is the distance in a regular simplex, √(2C/(C−1)).",
  );
  grid.append(left, right);
  let at = 0;
  const scene = methodPicker(left.querySelector("header"), scenes, reset);
  const one = chart(left, () => planeOption(scene(), at, map.names, left.clientWidth - 40, phone() ? 330 : 400), {
    tall: 400,
    small: 330,
    label: "prototypes in a plane",
  });
  const slot = el("div", {});
  left.append(slot);
  const two = chart(right, () => distanceOption(scenes, scene(), at), {
    tall: 430,
    small: 330,
    label: "distances between prototypes over rounds",
  });
  function reset() {
    at = scene().rounds.length - 1;
    slot.replaceChildren(
      rounds(scene().rounds, (t) => {
        at = t;
        one.draw();
        two.draw();
      }),
    );
    if (drawn.some((item) => item.chart && item.card === left)) {
      one.draw();
      two.draw();
    }
  }
  reset();
  return null;
}

/** Return the colour of a class: hues evenly spaced at one lightness. */
const classColour = (c, classes) =>
  `hsl(${Math.round((360 * c) / classes)} ${state.theme === "dark" ? "62% 64%" : "62% 44%"})`;

/** Return the prototypes of one round with their trails. */
function planeOption(scene, at, list, width, tall) {
  const classes = list.length;
  const reach = 1.1 * scene.xy.values.reduce((most, v) => Math.max(most, Math.abs(v) || 0), 0);
  const wide = Math.max(1, (width - 30) / (tall - 68));
  const share = scene.explained.map((s) => `${fixed(100 * s, 0)} %`);
  const mark = (c) => classColour(c, classes);
  const trail = list.map((_, c) => ({
    type: "line",
    silent: true,
    showSymbol: false,
    animation: false,
    z: 2,
    lineStyle: { color: mark(c), width: 1.5, opacity: 0.4 },
    data: scene.rounds
      .slice(0, at + 1)
      .map((__, t) => [scene.xy.at(t, c, 0), scene.xy.at(t, c, 1)])
      .filter(([x]) => known(x)),
  }));
  return {
    animation: false,
    grid: { left: 16, right: 14, top: 30, bottom: 38, show: true, borderColor: css("--grid") },
    tooltip: tooltip({
      formatter: ({ data }) =>
        tip(`class ${list[data.value[2]]}`, [
          ["training images", whole(group().map.totals[data.value[2]])],
          ["round", String(scene.rounds[at])],
        ]),
    }),
    xAxis: axis({
      name: `first component, ${share[0]} of the variance`,
      min: -reach * wide,
      max: reach * wide,
      nameGap: 16,
      axisLabel: { show: false },
      splitLine: { show: false },
      axisLine: { show: true, lineStyle: { color: css("--grid") } },
    }),
    yAxis: axis({
      ...upright(`second component, ${share[1] || "0 %"}`),
      min: -reach,
      max: reach,
      axisLabel: { show: false },
      splitLine: { show: false },
      axisLine: { onZero: false, show: false },
    }),
    series: [
      ...(classes <= 60 ? trail : []),
      {
        type: "scatter",
        symbolSize: classes > 40 ? 9 : 14,
        z: 4,
        data: list
          .map((_, c) => ({
            value: [scene.xy.at(at, c, 0), scene.xy.at(at, c, 1), c],
            itemStyle: { color: mark(c), borderColor: css("--card"), borderWidth: 1.5 },
          }))
          .filter(({ value }) => known(value[0])),
        label: {
          show: classes <= 40,
          formatter: ({ value }) => short(list[value[2]], 12),
          position: "top",
          color: css("--ink"),
          fontSize: 12,
          distance: 4,
        },
        labelLayout: { hideOverlap: true },
      },
    ],
  };
}

/** Return the mean distances of all methods that have prototypes, with the band of the chosen one. */
function distanceOption(scenes, chosen, at) {
  const used = scenes.filter((scene) => shown(scene.entry));
  if (!used.length) return null;
  const lines = used.map((scene) => {
    const { label, colour, dash } = entries()[scene.entry];
    return {
      type: "line",
      name: label,
      showSymbol: scene.rounds.length < 2,
      symbol: "circle",
      symbolSize: 7,
      data: scene.rounds.map((t, i) => [t, scene.distance.mean[i]]),
      lineStyle: { color: colour, width: 2, type: dash },
      itemStyle: { color: colour },
      z: 3,
    };
  });
  const shade = used.includes(chosen)
    ? [band(chosen.rounds, chosen.distance.low, chosen.distance.high, entries()[chosen.entry].colour)]
    : [];
  const now = chosen.rounds[at];
  const note = { silent: true, symbol: "none", label: { color: css("--soft"), fontSize: 11.5 } };
  lines[0].markLine = {
    ...note,
    data: [
      {
        yAxis: chosen.ideal,
        lineStyle: { color: css("--soft"), type: "dashed" },
        label: {
          formatter: `simplex ${fixed(chosen.ideal)}`,
          position: "insideEndTop",
          color: css("--soft"),
          fontSize: 11.5,
        },
      },
      ...(chosen.rounds.length > 1
        ? [{ xAxis: now, lineStyle: { color: css("--faint"), type: "solid", width: 1 }, label: { show: false } }]
        : []),
    ],
  };
  const pair = chosen.nearest[at];
  return {
    grid: { left: 40, right: 16, top: 34, bottom: 44 },
    tooltip: tooltip({
      trigger: "axis",
      formatter: (points) => {
        const rows = points.filter((point) => point.seriesType === "line");
        return rows.length
          ? tip(
              `round ${rows[0].data[0]}`,
              rows.map((point) => [
                point.seriesName,
                fixed(point.data[1], 3),
                entries().find((entry) => entry.label === point.seriesName).colour,
              ]),
            )
          : "";
      },
    }),
    title: pair
      ? {
          text: `closest${phone() ? "" : ` in round ${now}`}: ${short(group().map.names[pair[0]], 10)} and ${short(group().map.names[pair[1]], 10)}, ${fixed(chosen.distance.low[at])} apart`,
          right: 10,
          top: 4,
          textStyle: { fontSize: 11.5, fontWeight: 400, color: css("--soft") },
        }
      : {},
    xAxis: axis({
      name: "round",
      nameGap: 26,
      minInterval: 1,
      splitLine: { show: false },
      min: "dataMin",
      max: "dataMax",
    }),
    yAxis: axis({ ...upright("distance"), min: 0, max: Math.max(1.5, Math.ceil(2 * chosen.ideal) / 2), interval: 0.5 }),
    series: [...shade, ...lines],
  };
}

const LOOP = {
  drift: ["drift", "--ink", "solid"],
  feedback: ["feedback", "#D55E00", "solid"],
  heterogeneity: ["heterogeneity", "#0A7ABF", "dashed"],
  variance: ["variance", "#009E73", "dotted"],
};

/** The bias loop: the drift of the prototypes, and its parts. */
function loopSection(add) {
  const { loop: scenes, map } = group();
  if (!scenes || !scenes.length) return null;
  const { card, grid } = add(
    "loop",
    "Bias loop",
    "Drift of each global prototype per round, decomposed into feedback (the pull of the old anchor), heterogeneity (differences between clients) and variance (clients with few images).",
  );
  const left = card("w6", "Mean over classes");
  const right = card("w6", "By class");
  grid.append(left, right);
  let at = 0;
  const scene = methodPicker(left.querySelector("header"), scenes, reset);
  const colour = (name) => (LOOP[name][1].startsWith("--") ? css(LOOP[name][1]) : LOOP[name][1]);
  const mean = (table, t) => {
    const row = map.names.map((_, c) => table.at(t, c)).filter(known);
    return row.length ? row.reduce((a, b) => a + b, 0) / row.length : null;
  };
  const legend = { bottom: 0, icon: "roundRect", itemWidth: 14, itemHeight: 4, textStyle: { color: css("--soft") } };
  chart(
    left,
    () => ({
      grid: { left: 52, right: 16, top: 34, bottom: 66 },
      legend,
      tooltip: tooltip({
        trigger: "axis",
        formatter: (points) =>
          tip(
            `round ${points[0].axisValue}`,
            points.map((p) => [p.seriesName, Number(p.data[1]).toPrecision(3), p.color]),
          ),
      }),
      xAxis: axis({
        name: "round",
        nameGap: 24,
        minInterval: 1,
        splitLine: { show: false },
        min: "dataMin",
        max: "dataMax",
      }),
      yAxis: axis({ ...upright("mean over classes") }),
      series: Object.entries(scene().parts).map(([name, table]) => ({
        type: "line",
        name: LOOP[name][0],
        showSymbol: scene().rounds.length < 2,
        data: scene().rounds.map((t, i) => [t, mean(table, i)]),
        color: colour(name),
        lineStyle: { color: colour(name), width: name === "drift" ? 2.5 : 2, type: LOOP[name][2] },
      })),
    }),
    { tall: 400, small: 360, label: "drift of the prototypes over rounds" },
  );
  const two = chart(
    right,
    () => ({
      grid: { left: 52, right: 12, top: 34, bottom: 66 },
      legend,
      tooltip: tooltip({
        trigger: "axis",
        axisPointer: { type: "shadow" },
        formatter: (points) =>
          tip(
            `class ${points[0].name}, round ${scene().rounds[at]}`,
            points.map((p) => [p.seriesName, Number(p.value).toPrecision(3), p.color]),
          ),
      }),
      xAxis: names(map.names, { name: "class", nameGap: 24, axisLabel: { formatter: (name) => short(name, 9) } }),
      yAxis: axis({ ...upright("in this round") }),
      series: Object.entries(scene().parts).map(([name, table]) => ({
        type: name === "drift" ? "scatter" : "bar",
        name: LOOP[name][0],
        stack: name === "drift" ? null : "parts",
        symbol: "diamond",
        symbolSize: 9,
        z: name === "drift" ? 5 : 2,
        barMaxWidth: 26,
        color: colour(name),
        data: map.names.map((_, c) => table.at(at, c)),
      })),
    }),
    { tall: 360, label: "drift of the prototypes by class" },
  );
  const slot = el("div", {});
  right.append(slot);
  function reset() {
    at = scene().rounds.length - 1;
    slot.replaceChildren(
      rounds(scene().rounds, (t) => {
        at = t;
        two.draw();
      }),
    );
    if (drawn.some((item) => item.chart && item.card === left)) redraw();
  }
  reset();
  return null;
}
