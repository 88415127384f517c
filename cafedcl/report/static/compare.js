"use strict";
// Comparison of methods: headline and ranking.

const PROTOCOLS = {
  server: "the server’s model",
  own: "each client’s own model",
  "own-prior": "each client’s own model, with the logarithm of the client’s label distribution added to its scores",
};
const ACCURACY = {
  server: "accuracy on the test set",
  own: "mean accuracy of the clients",
  "own-prior": "mean accuracy of the clients",
};

const RANKED_BY = { accuracy: "accuracy", balanced: "balanced accuracy" };

/** Return what the ranking's y-axis shows: accuracy, or balanced accuracy where test labels are skewed. */
const rankedTitle = () =>
  ranking().by === "balanced"
    ? state.protocol === "server"
      ? "balanced accuracy: mean recall of the classes"
      : "balanced accuracy over the classes a client holds"
    : ACCURACY[state.protocol];

/** The headline numbers. */
function headline(main) {
  const g = group();
  const seeds = Math.max(...g.entries.map((entry) => entry.seeds.length));
  const most = Math.max(...g.entries.map((entry) => entry.rounds));
  const count = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;
  const words = [
    g.split,
    ...(g.others ? [g.others] : []),
    count(g.clients, "client"),
    count(most, "round"),
    count(g.entries.length, "method"),
    count(seeds, "seed"),
  ];
  const tiles = el("div", { class: "tiles" });
  const lead = el("p", {});
  main.append(el("div", { class: "hero" }, el("h1", {}, g.data), el("p", {}, words.join(" · ")), tiles, lead));
  if (g.notes.length)
    main.append(el("div", { class: "alert" }, `This comparison is not like for like: ${g.notes.join("; ")}.`));
  const warnings = el("div", { class: "warnings" });
  main.append(warnings);
  return () => {
    warnings.replaceChildren(
      ...ranking()
        .rows.map((row, i) => ({ row, label: entries()[i].label }))
        .filter(({ row, label }) => row && row.classes && row.classes.warning && !state.hidden.has(label))
        .map(({ row, label }) => el("div", { class: "alert warning" }, el("b", {}, `${label}: `), `${row.classes.warning}.`)),
    );
    const rows = ranking()
      .rows.map((row, i) => ({ row, entry: g.entries[i], cost: g.cost[i] }))
      .filter(
        ({ row, entry }) =>
          row && !state.hidden.has(entry.label) && (!entry.partial || g.entries.every((one) => one.partial)),
      );
    const several = rows.length > 1;
    const top = (key, sign) =>
      rows.filter(({ row }) => known(row[key].mean)).sort((a, b) => sign * (a.row[key].mean - b.row[key].mean))[0];
    const tile = (what, unit, best, key) =>
      best &&
      el(
        "div",
        { class: "tile" },
        el("div", { class: "what" }, what),
        el(
          "div",
          { class: "big" },
          fixed(best.row[key].mean, 1),
          unit,
          known(best.row[key].std) ? el("small", {}, `± ${fixed(best.row[key].std, 1)}`) : "",
        ),
        who(best.entry, "div"),
      );
    const lean = rows.filter(({ cost }) => cost.bytes > 0).sort((a, b) => a.cost.bytes - b.cost.bytes)[0];
    tiles.replaceChildren(
      ...[
        tile(several ? "most accurate" : "accuracy", " %", top("accuracy", -1), "accuracy"),
        tile(
          several ? "best balanced accuracy" : "balanced accuracy",
          " %",
          top("balanced", -1),
          "balanced",
        ),
        tile(several ? "fairest: lowest std across clients" : "std across clients", " pts", top("std", 1), "std"),
        tile(
          several ? "best for the worst 10 % of clients" : "worst 10 % of clients",
          " %",
          top("worst", -1),
          "worst",
        ),
        lean &&
          el(
            "div",
            { class: "tile" },
            el("div", { class: "what" }, several ? "least traffic" : "traffic"),
            el("div", { class: "big" }, amount(lean.cost.bytes), el("small", {}, "in total")),
            who(lean.entry, "div"),
          ),
      ].filter(Boolean),
    );
    const text = ranking().comparison;
    const skew = ranking().skew;
    const sentences = [
      `Scores of ${PROTOCOLS[state.protocol]} in the last scored round.`,
      skew ? `${skew[0].toUpperCase()}${skew.slice(1)}.` : "",
      text ? `${text}.` : "",
    ];
    lead.textContent = sentences.filter(Boolean).join(" ");
  };
}

/** Accuracy against fairness, and the table. */
function rankingSection(add) {
  if (entries().length < 2) return null;
  const { card, grid } = add(
    "ranking",
    "Accuracy and fairness",
    "Higher is more accurate, further left is fairer, so the best corner is the upper left. Small marks are single seeds, large marks their mean.",
  );
  const left = card("w5", "Accuracy against spread across clients");
  chart(
    left,
    () => {
      const { rows, by } = ranking();
      const used = rows
        .map((row, i) => ({ row, i }))
        .filter(({ row, i }) => row && shown(i) && known(row.std.mean) && known(row[by].mean));
      if (!used.length) return null;
      const box = { left: 44, right: 20, top: 34, bottom: 44 };
      const [xs, ys] = [
        range(
          used.flatMap(({ row }) => row.std.values),
          { low: 0 },
        ),
        range(
          used.flatMap(({ row }) => row[by].values),
          { low: 0, high: 100 },
        ),
      ];
      const [wide, high] = [left.clientWidth - 104, (phone() ? 340 : 400) - 78];
      const spots = labelSpots(
        used.map(({ row, i }) => ({
          i,
          label: entries()[i].label,
          x: (wide * (row.std.mean - xs.min)) / (xs.max - xs.min),
          y: (high * (ys.max - row[by].mean)) / (ys.max - ys.min),
        })),
        wide,
      );
      const series = used.flatMap(({ row, i }) => {
        const { label, colour, symbol } = entries()[i];
        const seeds = row[by].values.map((v, s) => [row.std.values[s], v]);
        return [
          {
            type: "scatter",
            name: label,
            symbol: marker(symbol),
            symbolSize: 7,
            data: seeds.length > 1 ? seeds : [],
            itemStyle: { color: colour, opacity: 0.4 },
            tooltip: { show: false },
            silent: true,
          },
          {
            type: "scatter",
            name: label,
            symbol: marker(symbol),
            symbolSize: 15,
            data: [[row.std.mean, row[by].mean]],
            z: 4,
            itemStyle: { color: colour, borderColor: css("--card"), borderWidth: 1.5 },
            label: {
              show: spots[i] !== null,
              formatter: label,
              position: spots[i],
              color: css("--ink"),
              fontSize: 12,
              distance: 6,
            },
          },
        ];
      });
      return {
        grid: box,
        tooltip: tooltip({
          formatter: ({ seriesName }) => {
            const i = entries().findIndex((entry) => entry.label === seriesName);
            const pm = (cell) => `${fixed(cell.mean)}${known(cell.std) ? ` ± ${fixed(cell.std)}` : ""}`;
            return tip(seriesName, [
              ["accuracy", pm(rows[i].accuracy)],
              ["balanced accuracy", pm(rows[i].balanced)],
              ["worst class", pm(rows[i].worst_class)],
              ["std across clients", pm(rows[i].std)],
              ["worst 10 % of clients", pm(rows[i].worst)],
              ["accuracy in the best round", fixed(rows[i].best)],
            ]);
          },
        }),
        xAxis: axis({ name: "standard deviation across clients, points", ...xs }),
        yAxis: axis({ ...upright(`${rankedTitle()}, %`), ...ys }),
        series,
      };
    },
    { tall: 400, small: 340, label: "accuracy against standard deviation across clients" },
  );
  const right = card("w7", "Table", "Mean ± std over seeds, in %. The best is bold, the second best underlined.");
  right.dataset.keep = "1";
  const scroll = el("div", { class: "scroll" });
  right.append(scroll);
  grid.append(left, right);
  return () => {
    const { rows, by, skew } = ranking();
    const order = entries()
      .map((_, i) => i)
      .filter((i) => rows[i])
      .sort((a, b) => (rows[b][by].mean ?? -1) - (rows[a][by].mean ?? -1));
    const cell = ({ mean, std, rank }) =>
      el(
        "td",
        {},
        el("span", { class: ["", "first", "second"][rank] }, fixed(mean)),
        known(std) ? el("span", { class: "pm" }, ` ±${fixed(std, 1)}`) : "",
      );
    const head = el(
      "tr",
      {},
      ["method", "accuracy ↑", "balanced ↑", "worst class ↑", "client std ↓", "worst 10 % ↑"].map((text) =>
        el("th", {}, text),
      ),
    );
    const body = order.map((i) => {
      const row = ranking().rows[i];
      return el(
        "tr",
        { class: shown(i) ? null : "off" },
        el("td", {}, who(entries()[i]), entries()[i].partial ? " *" : ""),
        cell(row.accuracy),
        cell(row.balanced),
        cell(row.worst_class),
        cell(row.std),
        cell(row.worst),
      );
    });
    const lacking = entries()
      .filter((_, i) => !ranking().rows[i])
      .map((entry) => entry.label);
    const notes = [
      skew ? `Sorted by ${RANKED_BY[by]}, because test labels are skewed.` : `Sorted by ${RANKED_BY[by]}.`,
      "Worst class: its recall. Worst 10 %: of the clients.",
      entries().some((entry) => entry.partial) ? "* Not finished; scores of the rounds so far." : "",
      lacking.length ? `Not scored this way: ${lacking.join(", ")}.` : "",
    ]
      .join(" ")
      .trim();
    scroll.replaceChildren(el("table", {}, head, ...body), el("p", { class: "note", style: "margin-top:8px" }, notes));
  };
}

/** Return on which side of its mark each name fits; null if it fits on none. */
function labelSpots(points, wide) {
  const taken = points.map(({ x, y }) => [x - 8, y - 8, x + 8, y + 8]);
  const spots = {};
  for (const { i, label, x, y } of points) {
    const long = 7 * label.length;
    const boxes = {
      right: [x + 10, y - 8, x + 12 + long, y + 8],
      left: [x - 12 - long, y - 8, x - 10, y + 8],
      top: [x - long / 2, y - 26, x + long / 2, y - 10],
      bottom: [x - long / 2, y + 10, x + long / 2, y + 26],
    };
    const free = Object.entries(boxes).find(
      ([, [a, b, c, d]]) => a > -20 && c < wide + 16 && taken.every(([e, f, g, h]) => c < e || a > g || d < f || b > h),
    );
    spots[i] = free ? free[0] : null;
    if (free) taken.push(free[1]);
  }
  return spots;
}
