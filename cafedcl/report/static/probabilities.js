"use strict";
// Scores of probabilities, calibration, and the images that a model got most wrong.

const FULL = [
  ["macro_f1", "macro-F1 ↑"],
  ["auroc", "AUROC ↑"],
  ["auprc", "AUPRC ↑"],
  ["sensitivity", "sens. ↑"],
  ["ece", "ECE ↓"],
  ["calibrated_ece", "cal. ECE ↓"],
  ["probable_accuracy", "prob. acc. ↑"],
];

/** Scores that need every probability: one class against the rest, and calibration. */
function probabilitiesSection(add) {
  const scored = () => ranking().rows.some((row) => row && known(row.auroc.mean));
  const any = Object.values(group().ranking).some((one) => one.rows.some((row) => row && known(row.auroc.mean)));
  if (!any) return null;
  const { section, card, grid } = add(
    "probabilities",
    "Probabilities",
    "Each class against the rest, after the last round. Can a model’s probabilities be believed? On the diagonal, predictions of 80 % are right in 80 % of the cases; below it, the model is too sure of itself.",
  );
  const table = card(
    "w7",
    "Scores of probabilities",
    "Mean over classes, in %; mean ± std over seeds. ECE: expected calibration error, before and after calibration. Sens.: sensitivity. Prob. acc.: accuracy if the most probable class is taken.",
  );
  const scroll = el("div", { class: "scroll" });
  table.append(scroll);
  const place = card("w5", "Reliability", "How often predictions are right, by the probability that the model gives them before calibration.");
  grid.append(table, place);
  chart(place, reliabilityOption, { tall: 360, small: 320, label: "reliability diagram" });
  const perClass = card("", "AUROC, AUPRC and sensitivity per class", "The server’s model, one class against the rest, in %.");
  const inner = el("div", { class: "scroll" });
  perClass.append(inner);
  grid.append(perClass);
  return () => {
    section.hidden = !scored();
    if (section.hidden) return;
    const cell = ({ mean, std, rank }) =>
      el(
        "td",
        {},
        el("span", { class: ["", "first", "second"][rank] }, fixed(mean, 1)),
        known(std) ? el("span", { class: "pm" }, ` ±${fixed(std, 1)}`) : "",
      );
    const head = el("tr", {}, ["method", ...FULL.map(([, title]) => title)].map((text) => el("th", {}, text)));
    const rows = ranking()
      .rows.map((row, i) => ({ row, i }))
      .filter(({ row }) => row && known(row.auroc.mean))
      .map(({ row, i }) =>
        el("tr", { class: shown(i) ? null : "off" }, el("td", {}, who(entries()[i])), ...FULL.map(([key]) => cell(row[key]))),
      );
    scroll.replaceChildren(el("table", {}, head, ...rows));
    classScores(perClass, inner);
  };
}

/** Fill the table of scores per class; it is for the server’s model and for a number of classes that fits. */
function classScores(place, inner) {
  const { details, map } = group();
  const used = entries()
    .map((_, i) => i)
    .filter((i) => details[i].ranked.auroc);
  place.hidden = state.protocol !== "server" || !used.length || !map || map.names.length > MOST_COLUMNS;
  if (place.hidden) return;
  const head = el("tr", {}, ["method", "", ...map.names].map((text) => el("th", {}, short(text))));
  const titles = { auroc: "AUROC", auprc: "AUPRC", sensitivity: "sensitivity" };
  const rows = used.flatMap((i) =>
    Object.entries(titles).map(([key, title], at) =>
      el(
        "tr",
        { class: shown(i) ? null : "off" },
        el("td", {}, at ? "" : who(entries()[i])),
        el("td", { class: "left" }, title),
        ...details[i].ranked[key].map((value) => el("td", {}, fixed(value, 1))),
      ),
    ),
  );
  inner.replaceChildren(el("table", {}, head, ...rows));
}

/** Return the reliability diagram of all methods. */
function reliabilityOption() {
  const { details } = group();
  const kind = state.protocol === "server" ? "server" : "own";
  if (state.protocol === "own-prior") return null;
  const used = entries()
    .map((_, i) => i)
    .filter((i) => shown(i) && details[i].reliability[kind]?.length);
  if (!used.length) return null;
  const most = Math.max(...used.flatMap((i) => details[i].reliability[kind].map(({ images }) => images)));
  return {
    grid: { left: 40, right: 18, top: 34, bottom: 44 },
    tooltip: tooltip({
      formatter: ({ seriesName, data }) =>
        data.length < 3
          ? ""
          : tip(seriesName, [
              ["mean probability", `${fixed(data[0], 1)} %`],
              ["right", `${fixed(data[1], 1)} %`],
              ["images", whole(data[2])],
            ]),
    }),
    xAxis: axis({ name: "probability of the predicted class, %", min: 0, max: 100 }),
    yAxis: axis({ ...upright("right predictions, %"), min: 0, max: 100 }),
    series: [
      {
        type: "line",
        silent: true,
        showSymbol: false,
        data: [
          [0, 0],
          [100, 100],
        ],
        lineStyle: { color: css("--faint"), type: "dashed", width: 1 },
        tooltip: { show: false },
      },
      ...used.map((i) => ({
        type: "line",
        name: entries()[i].label,
        symbol: marker(entries()[i].symbol),
        symbolSize: (value) => 5 + 9 * Math.sqrt(value[2] / most),
        itemStyle: { color: entries()[i].colour },
        lineStyle: { color: entries()[i].colour, width: 1.5, type: entries()[i].dash },
        data: details[i].reliability[kind].map(({ confidence, accuracy, images }) => [confidence, accuracy, images]),
      })),
    ],
  };
}

/** The test images that the server’s model got most wrong. */
function wrongSection(add) {
  const { details } = group();
  const used = entries()
    .map((_, i) => i)
    .filter((i) => details[i].wrong.length);
  if (!used.length) return null;
  const { card, grid } = add(
    "wrong",
    "Most wrong images",
    "Test images of which the server’s model was most certain that they are something else: hard cases, wrong labels, or a class that it does not know.",
  );
  let chosen = Math.max(
    0,
    used.findIndex((i) => entries()[i].label === "cafedcl"),
  );
  const place = card("", "Images");
  const sheet = el("div", { class: "wrong" });
  place.append(sheet);
  grid.append(place);
  const fill = () =>
    sheet.replaceChildren(
      ...details[used[chosen]].wrong.map(({ png, label, predicted, probability }) =>
        el(
          "figure",
          {},
          el("img", { src: `data:image/png;base64,${png}`, alt: `a test image of class ${label}` }),
          el("figcaption", {}, el("b", {}, short(label)), el("span", {}, `predicted ${short(predicted)}, ${fixed(probability, 0)} %`)),
        ),
      ),
    );
  if (used.length > 1)
    place.querySelector("header").append(
      picker(
        used.map((i) => entries()[i].label),
        chosen,
        (i) => {
          chosen = i;
          fill();
        },
        "method",
      ),
    );
  fill();
  return null;
}
