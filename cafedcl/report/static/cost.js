"use strict";
// Generated images, cost, and how to reproduce the runs.

/** Images of the generator. */
function samplesSection(add) {
  const { samples } = group();
  if (!samples.length) return null;
  const { card, grid } = add("samples", "Generated images", "Samples of the generator, one sheet per round and client.");
  const place = card("", "Samples");
  place.append(
    el(
      "div",
      { class: "sheets" },
      samples.map(({ entry, name, png }) =>
        el(
          "figure",
          {},
          el("img", { src: `data:image/png;base64,${png}`, alt: `samples of ${entries()[entry].label}, ${sheetTitle(name)}` }),
          el("figcaption", {}, `${entries()[entry].label}, ${sheetTitle(name)}`),
        ),
      ),
    ),
  );
  grid.append(place);
  return null;
}

/** Return the title of a contact sheet from its file name, such as round-0004-client-02, which counts rounds from 0. */
function sheetTitle(name) {
  const found = /^round-(\d+)-client-(\d+)$/.exec(name);
  return found ? `round ${Number(found[1]) + 1}, ${clientTitle(Number(found[2]))}` : name;
}

/** Seconds and bytes. */
function costSection(add) {
  const { cost } = group();
  const phases = [...new Set(cost.flatMap((one) => Object.keys(one.phases)))];
  const { card, grid } = add(
    "cost",
    "Cost",
    "Mean over rounds and seeds. Compare times only between runs on the same machine under the same load.",
  );
  const colours = { train: "#0A7ABF", aggregate: "#D55E00", evaluate: "#8A8F98" };
  const stacked = (parts, write, title) => () => {
    const used = entries()
      .map((_, i) => i)
      .filter(shown);
    if (!used.length || !used.some((i) => parts.some(([, of]) => of(cost[i]) > 0))) return null;
    return {
      tall: 100 + 34 * used.length,
      grid: { ...besides(used.map((i) => entries()[i].label)), right: 24, top: 6, bottom: 70 },
      legend: { bottom: 0, icon: "roundRect", itemWidth: 12, itemHeight: 8, textStyle: { color: css("--soft") } },
      tooltip: tooltip({
        trigger: "axis",
        axisPointer: { type: "shadow" },
        formatter: (points) =>
          tip(
            points[0].name,
            points.map((p) => [p.seriesName, write(p.value), p.color]),
          ),
      }),
      xAxis: axis({ name: title, nameGap: 24, splitNumber: 4, axisLabel: { formatter: write } }),
      yAxis: names(
        used.map((i) => entries()[i].label),
        { inverse: true, axisLabel: { color: css("--ink"), fontSize: 12, formatter: narrow } },
      ),
      series: parts.map(([name, of, colour]) => ({
        type: "bar",
        name,
        stack: "all",
        barMaxWidth: 16,
        color: colour,
        data: used.map((i) => of(cost[i])),
      })),
    };
  };
  const spare = ["#009E73", "#CC79A7", "#C79200"];
  const left = card("w6", "Seconds per round");
  const right = card("w6", "Bytes per round");
  grid.append(left, right);
  chart(
    left,
    stacked(
      phases.map((phase, i) => [phase, (one) => one.phases[phase] || 0, colours[phase] || spare[i % 3]]),
      duration,
      "seconds per round, by phase",
    ),
    { label: "seconds per round by phase" },
  );
  chart(
    right,
    stacked(
      [
        ["up, from clients", (one) => one.up, "#0A7ABF"],
        ["down, to clients", (one) => one.down, "#8A8F98"],
      ],
      amount,
      "bytes per round, all clients together",
    ),
    { label: "bytes per round" },
  );
  const place = card("", "Table of costs");
  const head = [
    "method",
    "time per round",
    "total time",
    "up per round",
    "down per round",
    "total traffic",
    "failed replies",
    "dropouts",
    "skipped rounds",
  ];
  place.append(
    el(
      "div",
      { class: "scroll" },
      el(
        "table",
        {},
        el(
          "tr",
          {},
          head.map((text) => el("th", {}, text)),
        ),
        entries().map((entry, i) =>
          el(
            "tr",
            {},
            el("td", {}, who(entry)),
            [
              duration(Object.values(cost[i].phases).reduce((a, b) => a + b, 0)),
              duration(cost[i].seconds),
              amount(cost[i].up),
              amount(cost[i].down),
              amount(cost[i].bytes),
              whole(cost[i].failed),
              whole(cost[i].dropped),
              whole(cost[i].skipped),
            ].map((text) => el("td", {}, text)),
          ),
        ),
      ),
    ),
  );
  grid.append(place);
  return null;
}

/** Every run: its state, and how to reproduce it. */
function runsSection(add) {
  const runs = DATA.runs;
  const { card, grid } = add("runs", "Reproduce", "The commands and the environment behind these numbers.");
  const mine = runs.filter((run) => run.title === group().title && run.command.length);
  const place = card("", "Command and environment");
  if (mine.length) {
    const pre = el("pre", {});
    const facts = el("dl", { class: "facts" });
    const fill = (i) => {
      const run = mine[i];
      pre.textContent = run.command
        .map((word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`))
        .join(" ");
      const packages = Object.entries(run.packages)
        .map(([name, version]) => `${name} ${version}`)
        .join(", ");
      const rows = {
        started: run.started,
        python: run.python,
        packages,
        platform: run.platform,
        device: run.device_name,
        commit: run.commit,
        folder: run.path,
      };
      facts.replaceChildren(
        ...Object.entries(rows)
          .filter(([, text]) => text)
          .flatMap(([name, text]) => [el("dt", {}, name), el("dd", {}, text)]),
      );
    };
    const copy = el(
      "button",
      {
        type: "button",
        onclick: () =>
          navigator.clipboard?.writeText(pre.textContent).then(() => {
            copy.textContent = "copied";
            setTimeout(() => {
              copy.textContent = "copy";
            }, 1500);
          }),
      },
      "copy",
    );
    if (mine.length > 1)
      place.querySelector("header").append(
        picker(
          mine.map((run) => `${run.method}, seed ${run.seed}`),
          0,
          fill,
          "run",
        ),
      );
    place.append(el("div", { class: "command" }, pre, copy), facts);
    fill(0);
    grid.append(place);
  }
  const odd = runs.filter((run) => run.state !== "finished");
  const list = card(
    "",
    `${runs.length} run${runs.length === 1 ? "" : "s"} read`,
    odd.length
      ? `${odd.length} unfinished, failed or repeated; they are left out of all means, unless a method has no finished run.`
      : "All runs are finished.",
  );
  const head = ["state", "method", "seed", "setting", "rounds", "folder", "note"];
  const rows = [...odd, ...runs.filter((run) => run.state === "finished")].map((run) =>
    el(
      "tr",
      {},
      el("td", {}, el("span", { class: `state ${run.state}` }, run.state)),
      [run.method, run.seed ?? "–", run.title || "–", run.rounds].map((text) =>
        el("td", { class: "left" }, String(text)),
      ),
      el("td", { class: "left path" }, run.path),
      el("td", { class: "left path" }, [run.problem, run.privacy].filter(Boolean).join("; ")),
    ),
  );
  const table = el(
    "div",
    { class: "scroll" },
    el(
      "table",
      {},
      el(
        "tr",
        {},
        head.map((text) => el("th", { class: "left" }, text)),
      ),
      rows,
    ),
  );
  list.append(
    runs.length > 12
      ? el("details", { open: false, style: "margin-top:8px" }, el("summary", {}, "all runs"), table)
      : table,
  );
  if (odd.length && runs.length > 12)
    list.append(
      el(
        "div",
        { class: "scroll" },
        el(
          "table",
          { style: "width:auto" },
          odd.map((run) =>
            el(
              "tr",
              {},
              el("td", {}, el("span", { class: `state ${run.state}` }, run.state)),
              el("td", { class: "left path" }, run.path),
              el("td", { class: "left path" }, run.problem),
            ),
          ),
        ),
      ),
    );
  for (const problem of DATA.problems)
    list.append(el("p", { class: "note", style: "margin-top:6px;overflow-wrap:anywhere" }, problem));
  grid.append(list);
  return null;
}
