"use strict";
// Scores per class.

/** Recall of many-, medium- and few-shot classes, recall by class size, and the confusion matrix. */
function classesSection(add) {
  const { details: d, shots, map } = group();
  const recalls = d.some((one) => Object.keys(one.recall).length) && map;
  const confused = entries()
    .map((_, i) => i)
    .filter((i) => d[i].confusion);
  const groups = Object.values(shots).some((found) => Object.keys(found).length > 1);
  if (!recalls && !confused.length && !groups) return null;
  const { card, grid } = add("classes", "Classes", "Are rare classes recognised as well as frequent ones?");
  const update = recallTable(card, grid);
  if (groups) {
    const place = card(
      recalls ? "w5" : "",
      "Many-, medium- and few-shot classes",
      "Mean recall of classes by their number of training images.",
    );
    grid.append(place);
    chart(place, shotsOption, { tall: 340, label: "recall of many-, medium- and few-shot classes" });
  }
  if (recalls) {
    const place = card(
      groups ? "w7" : "w6",
      "Recall by class size",
      "Each mark is a class; classes with few training images are on the left.",
    );
    grid.append(place);
    chart(place, recallOption, { tall: 340, label: "recall of every class against its number of training images" });
  }
  if (confused.length && map) {
    let chosen = Math.max(
      0,
      confused.findIndex((i) => entries()[i].label === "cafedcl"),
    );
    const place = card(
      groups ? "" : "w6",
      "Confusion matrix",
      "Predictions of the server’s model for the test images of each class (row), in %. The diagonal is right.",
    );
    grid.append(place);
    const size = map.names.length;
    const { draw: again } = chart(
      place,
      () => {
        const table = d[confused[chosen]].confusion;
        const value = (r, c) => table.at(r, c);
        const sums = map.names.map((_, r) => map.names.reduce((sum, __, c) => sum + value(r, c), 0));
        const most = sums.map((sum, r) => (sum ? Math.max(...map.names.map((_, c) => value(r, c))) / sum : 0));
        return heat({
          xs: map.names,
          ys: map.names,
          low: 0,
          high: Math.ceil(100 * Math.max(0.1, ...most)),
          digits: 0,
          write: size <= MOST_WRITTEN && ((v) => fixed(v, v < 1 ? 1 : 0)),
          xname: "predicted",
          yname: "",
          value: (x, y) => (sums[y] && value(y, x) ? (100 * value(y, x)) / sums[y] : NaN),
          text: (x, y, v) =>
            tip(`class ${map.names[y]}, predicted as ${map.names[x]}`, [
              ["share", `${fixed(v, 1)} %`],
              ["images", whole(value(y, x))],
            ]),
        });
      },
      { tall: Math.min(760, Math.max(340, 130 + 32 * size)), small: 400, label: "confusion matrix" },
    );
    if (confused.length > 1)
      place.querySelector("header").append(
        picker(
          confused.map((i) => entries()[i].label),
          chosen,
          (i) => {
            chosen = i;
            again();
          },
          "method",
        ),
      );
  }
  return update;
}

const MOST_WRITTEN = 20; // classes of a confusion matrix whose cells have room for a number
const MOST_COLUMNS = 24; // classes that have a column in the table of recalls

/** Add the table of recalls, methods × classes; of many classes, only the worst ones are named. */
function recallTable(card, grid) {
  const some = () => ranking().rows.find((row) => row && row.classes);
  if (!Object.values(group().ranking).some((one) => one.rows.some((row) => row && row.classes))) return null;
  const place = card(
    "",
    "Recall per class",
    "Share of each class’s test images that are recognised, in %. The worst class of a method is underlined.",
  );
  const scroll = el("div", { class: "scroll" });
  place.append(scroll);
  grid.append(place);
  return () => {
    place.hidden = !some();
    if (place.hidden) return;
    const { rows } = ranking();
    const list = [...new Set(rows.flatMap((row) => (row && row.classes ? row.classes.names : [])))];
    const wide = list.length <= MOST_COLUMNS;
    const head = el("tr", {}, ["method", ...(wide ? list : ["worst classes"])].map((text) => el("th", {}, short(text))));
    const body = rows
      .map((row, i) => ({ row, i }))
      .filter(({ row }) => row && row.classes)
      .map(({ row, i }) => {
        const { names: own, recall, worst } = row.classes;
        const known_ = own.map((name, c) => [recall[c], name]).filter(([v]) => known(v));
        const low = known_.sort((a, b) => a[0] - b[0]).slice(0, 6);
        const texts = wide
          ? list.map((name) => {
              const value = recall[own.indexOf(name)];
              const shade = known(value) ? `--share:${Math.round(value)}%` : "";
              return el("td", { class: "shaded", style: shade }, el("span", { class: name === worst ? "second" : "" }, fixed(value, 1)));
            })
          : [el("td", {}, low.map(([v, name]) => `${short(name)} ${fixed(v, 1)}`).join(", "))];
        return el("tr", { class: shown(i) ? null : "off" }, el("td", {}, who(entries()[i])), ...texts);
      });
    scroll.replaceChildren(el("table", {}, head, ...body));
  };
}

/** Return grouped bars of the three kinds of classes. */
function shotsOption() {
  const found = group().shots[state.protocol] || {};
  const kinds = Object.keys(found);
  const used = entries()
    .map((_, i) => i)
    .filter((i) => shown(i) && kinds.some((kind) => known(found[kind][i].mean)));
  if (!used.length || kinds.length < 2) return null;
  return {
    grid: { left: 36, right: 8, top: 34, bottom: 30 },
    tooltip: tooltip({
      trigger: "axis",
      axisPointer: { type: "none" },
      formatter: (points) =>
        tip(
          `${points[0].name}-shot`,
          points.map((point) => [point.seriesName, `${fixed(point.value, 1)} %`, point.color]),
        ),
    }),
    xAxis: names(kinds, { axisLabel: { color: css("--ink") } }),
    yAxis: axis({ ...upright("recall, %"), min: 0, max: 100 }),
    series: used.map((i) => ({
      type: "bar",
      name: entries()[i].label,
      barMaxWidth: 22,
      barGap: "12%",
      itemStyle: { color: entries()[i].colour, borderRadius: [3, 3, 0, 0] },
      data: kinds.map((kind) => found[kind][i].mean),
    })),
  };
}

/** Return the recall of every class against its number of training images. */
function recallOption() {
  const { details: d, map } = group();
  const { totals } = map;
  const used = entries()
    .map((_, i) => i)
    .filter((i) => shown(i) && d[i].recall[state.protocol]);
  if (!used.length) return null;
  const spread = Math.max(...totals) > 5 * Math.max(1, Math.min(...totals));
  return {
    grid: { left: 40, right: 18, top: 34, bottom: 44 },
    tooltip: tooltip({
      formatter: ({ seriesName, data }) =>
        tip(`class ${map.names[data[2]]}, ${whole(data[0])} images`, [[seriesName, `${fixed(data[1], 1)} %`]]),
    }),
    xAxis: spread
      ? axis({ type: "log", name: "training images of the class, log scale" })
      : axis({ name: "training images of the class", scale: true, boundaryGap: ["6%", "6%"] }),
    yAxis: axis({
      ...upright(state.protocol.startsWith("own") ? "recall, mean over the clients that hold the class, %" : "recall, %"),
      min: 0,
      max: 100,
    }),
    series: used.map((i) => ({
      type: "scatter",
      name: entries()[i].label,
      symbol: marker(entries()[i].symbol),
      symbolSize: totals.length > 40 ? 7 : 10,
      itemStyle: { color: entries()[i].colour, opacity: 0.75 },
      emphasis: { focus: "series" },
      data: d[i].recall[state.protocol]
        .map((v, c) => [totals[c], 100 * v, c])
        .filter(([n, , c]) => n > 0 && known(d[i].recall[state.protocol][c])),
    })),
  };
}
