"use strict";
// Learning curves, ablations and sensitivity to options.

/** Scores over rounds, bytes or seconds. */
function curvesSection(add) {
  if (!group().curves.some((curve) => curve.rounds.length > 1)) return null;
  const { card, grid, section } = add(
    "curves",
    "Learning curves",
    "Mean over seeds; the band is one standard deviation. Drag the handles below a chart to zoom. Switch the x-axis to bytes or seconds here:",
  );
  const titles = { rounds: "rounds", bytes: "bytes sent", seconds: "seconds" };
  section.querySelector(".lead").after(
    el(
      "div",
      { class: "tools row" },
      choice(
        titles,
        state.axis,
        (value) => {
          state.axis = value;
          redraw();
        },
        "x-axis",
      ),
    ),
  );
  for (const [key, title] of [
    ["accuracy", "Accuracy"],
    ["balanced", "Balanced accuracy"],
    ["worst_class", "Recall of the worst class"],
    ["std", "Standard deviation across clients"],
  ]) {
    const place = card("w6", title);
    grid.append(place);
    chart(place, () => curveOption(key), { tall: 370, small: 330, label: `${title} over time` });
  }
  return null;
}

/** Return one score of all methods over rounds, bytes or seconds. */
function curveOption(key) {
  const series = [];
  const used = group()
    .curves.map((curve, i) => ({ curve, i }))
    .filter(
      ({ curve, i }) =>
        shown(i) &&
        curve[state.protocol] &&
        curve[state.protocol][key].mean.some(known) &&
        (state.axis === "rounds" || curve[state.axis].at(-1) > 0),
    );
  if (!used.length) return null;
  const by = {};
  const lasts = used.map(({ curve }) => curve[state.axis].at(-1));
  const log = state.axis === "bytes" && Math.max(...lasts) > 20 * Math.min(...lasts);
  for (const { curve, i } of used) {
    const { label, colour, dash } = entries()[i];
    const xs = curve[state.axis];
    const { mean, std } = curve[state.protocol][key];
    by[label] = { mean, std, xs };
    const low = mean.map((m, t) => (known(std[t]) ? Math.max(0, m - std[t]) : null));
    const high = mean.map((m, t) => (known(std[t]) ? Math.min(100, m + std[t]) : null));
    series.push(band(xs, low, high, colour, used.length > 5 ? 0.09 : 0.16));
    series.push({
      type: "line",
      name: label,
      data: xs.map((x, t) => [x, mean[t]]),
      connectNulls: true,
      showSymbol: xs.length < 2,
      symbol: "circle",
      symbolSize: 6,
      lineStyle: { color: colour, width: 2, type: dash },
      itemStyle: { color: colour },
      emphasis: { focus: "series" },
      z: 3,
    });
  }
  const write = { rounds: (v) => `round ${Math.round(v)}`, bytes: (v) => amount(v), seconds: (v) => duration(v) }[
    state.axis
  ];
  const zoom = { filterMode: "filter", xAxisIndex: 0 };
  return {
    grid: { left: 40, right: 16, top: 34, bottom: 82 },
    tooltip: tooltip({
      trigger: "axis",
      axisPointer: { lineStyle: { color: css("--faint"), width: 1 } },
      formatter: (points) => {
        const rows = points
          .filter((point) => point.seriesType === "line" && known(point.data[1]))
          .sort((a, b) => b.data[1] - a.data[1]);
        return rows.length
          ? tip(
              write(points[0].axisValue),
              rows.map((point) => {
                const std = by[point.seriesName].std[point.dataIndex];
                return [
                  point.seriesName,
                  `${fixed(point.data[1], 1)}${known(std) ? ` ± ${fixed(std, 1)}` : ""}`,
                  entries().find((entry) => entry.label === point.seriesName).colour,
                ];
              }),
            )
          : "";
      },
    }),
    xAxis: axis({
      type: log ? "log" : "value",
      name: {
        rounds: "round",
        bytes: log ? "bytes sent, up and down, log scale" : "bytes sent, up and down",
        seconds: "seconds",
      }[state.axis],
      nameGap: 26,
      splitLine: { show: false },
      minInterval: state.axis === "rounds" ? 1 : 0,
      max: Math.max(...lasts),
      min: log ? Math.min(...used.map(({ curve }) => curve.bytes[0])) : 0,
      axisLabel: {
        formatter: state.axis === "bytes" ? amount : (v) => String(v),
        showMaxLabel: state.axis === "rounds",
      },
    }),
    yAxis: axis({
      ...upright(
        {
          accuracy: `${ACCURACY[state.protocol]}, %`,
          balanced: "mean recall of the classes, %",
          worst_class: "recall of the worst class, %",
          std: "points, lower is fairer",
        }[key],
      ),
      scale: key !== "std",
      min: key !== "std" ? ({ min }) => Math.max(0, Math.floor(min / 10) * 10) : 0,
      max: ({ max }) => Math.min(100, Math.ceil(max / 5) * 5),
    }),
    dataZoom: [
      { type: "inside", zoomOnMouseWheel: "ctrl", moveOnMouseMove: false, preventDefaultMouseMove: false, ...zoom },
      {
        type: "slider",
        height: 18,
        bottom: 8,
        borderColor: "transparent",
        backgroundColor: css("--fill"),
        fillerColor: state.theme === "dark" ? "rgb(255 255 255 / 8%)" : "rgb(0 0 0 / 6%)",
        showDataShadow: false,
        showDetail: false,
        brushSelect: false,
        handleSize: "120%",
        handleStyle: { color: css("--card"), borderColor: css("--faint") },
        moveHandleSize: 0,
        ...zoom,
      },
    ],
    series,
  };
}

/** Variants of one method, and swept options. */
function ablationSection(add) {
  const { ablation, sensitivity } = group();
  if (!ablation.length && !sensitivity.length) return null;
  const words = [
    ablation.length ? "how much each part of a method contributes" : "",
    sensitivity.length ? "how scores depend on one option" : "",
  ]
    .filter(Boolean)
    .join(", and ");
  const { card, grid } = add(
    "ablation",
    ablation.length ? "Ablation and sensitivity" : "Sensitivity",
    words[0].toUpperCase() + words.slice(1) + "; error bars are one standard deviation over seeds.",
  );
  for (const family of ablation) {
    for (const [key, title, unit] of [
      ["accuracy", "accuracy", "%"],
      ["std", "std across clients", "points"],
    ]) {
      const place = card("w6", `${family.base}: ${title}`);
      grid.append(place);
      chart(place, () => barsOption(family.entries, key, `${title}, ${unit}`), {
        tall: 70 + 38 * family.entries.length,
        label: `${family.base}: ${title} of its variants`,
      });
    }
  }
  for (const sweep of sensitivity) {
    const place = card(
      sensitivity.length > 1 ? "w6" : "w12",
      `${sweep.method}: ${sweep.option.replace("method.", "")}`,
    );
    grid.append(place);
    chart(place, () => sweepOption(sweep), { tall: 340, label: `${sweep.method}: ${sweep.option}` });
  }
  return null;
}

/** Return a bar for each variant of a method, with its difference to the first variant. */
function barsOption(members, key, title) {
  const used = members.filter((i) => shown(i) && ranking().rows[i]);
  if (!used.length) return null;
  const cells = used.map((i) => ranking().rows[i][key]);
  const first = members[0] === used[0] ? cells[0].mean : null;
  const top = Math.max(...cells.map((cell) => cell.mean + (cell.std || 0)));
  const text = ({ mean }, at) =>
    `${fixed(mean)}${at && first !== null ? `  (${mean >= first ? "+" : "−"}${fixed(Math.abs(mean - first))})` : ""}`;
  return {
    grid: { ...besides(used.map((i) => entries()[i].label)), right: 104, top: 6, bottom: 40 },
    tooltip: tooltip({
      formatter: ({ dataIndex: at }) =>
        tip(entries()[used[at]].label, [
          ["mean", fixed(cells[at].mean)],
          ["std over seeds", fixed(cells[at].std)],
          ["seeds", cells[at].values.map((v) => fixed(v, 1)).join(", ")],
        ]),
    }),
    xAxis: axis({
      name: title,
      nameGap: 24,
      min: 0,
      max: key === "accuracy" ? 100 : Math.ceil(top),
      interval: key === "accuracy" ? 25 : null,
    }),
    yAxis: names(
      used.map((i) => entries()[i].label),
      { inverse: true, axisLabel: { color: css("--ink"), fontSize: 12, formatter: narrow } },
    ),
    series: [
      {
        type: "bar",
        barMaxWidth: 18,
        data: cells.map((cell, at) => ({
          value: cell.mean,
          itemStyle: { color: entries()[used[at]].colour, borderRadius: [0, 4, 4, 0] },
        })),
      },
      whiskers(cells.map((cell, at) => [at, cell.mean, cell.std, text(cell, at)])),
    ],
  };
}

/** Return accuracy above and std below over the values of one option. */
function sweepOption(sweep) {
  const found = sweep[state.protocol];
  if (!found || state.hidden.has(sweep.method)) return null;
  const mean = (list) => list.reduce((a, b) => a + b, 0) / list.length;
  const dev = (list) =>
    list.length > 1 ? Math.sqrt(list.reduce((sum, v) => sum + (v - mean(list)) ** 2, 0) / (list.length - 1)) : null;
  const at = sweep.values.indexOf(sweep.centre);
  const part = (key, index) => {
    const means = found[key].map(mean);
    return [
      {
        type: "line",
        xAxisIndex: index,
        yAxisIndex: index,
        data: means,
        symbol: "circle",
        symbolSize: (_, { dataIndex }) => (dataIndex === at ? 13 : 8),
        lineStyle: { color: sweep.colour, width: 2 },
        itemStyle: { color: sweep.colour, borderColor: css("--card"), borderWidth: 1.5 },
      },
      {
        ...whiskers(
          found[key].map((list, i) => [i, means[i], dev(list)]),
          true,
        ),
        xAxisIndex: index,
        yAxisIndex: index,
      },
    ];
  };
  const labels = sweep.values.map(String);
  const box = { left: 44, right: 16 };
  return {
    grid: [
      { ...box, top: 30, height: "38%" },
      { ...box, top: "60%", bottom: 46 },
    ],
    tooltip: tooltip({
      trigger: "axis",
      formatter: (points) =>
        tip(`${sweep.option} = ${labels[points[0].dataIndex]}`, [
          ["accuracy", `${fixed(mean(found.accuracy[points[0].dataIndex]))} %`],
          ["std across clients", fixed(mean(found.std[points[0].dataIndex]))],
          ["seeds", String(found.accuracy[points[0].dataIndex].length)],
        ]),
    }),
    axisPointer: { link: [{ xAxisIndex: "all" }] },
    xAxis: [
      names(labels, { gridIndex: 0, axisLabel: { show: false } }),
      names(labels, { gridIndex: 1, name: sweep.option.replace("method.", ""), nameGap: 26 }),
    ],
    yAxis: [
      axis({
        gridIndex: 0,
        ...upright("accuracy, %"),
        ...range(found.accuracy.flat(), { low: 0, high: 100 }),
        splitNumber: 3,
      }),
      axis({
        gridIndex: 1,
        ...upright("std across clients, points"),
        ...range(found.std.flat(), { low: 0 }),
        splitNumber: 3,
      }),
    ],
    series: [...part("accuracy", 0), ...part("std", 1)],
  };
}
