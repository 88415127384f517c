"use strict";
// Confidence per client and class, with a slider over rounds.

const PARTS = { trust: "confidence", data: "from data", val: "from validation", gen: "from generator" };

/** Add a list of the methods that have data; returns a function that returns the chosen one's data. */
function methodPicker(place, scenes, change) {
  let chosen = Math.max(
    0,
    scenes.findIndex((scene) => entries()[scene.entry].label === "cafedcl"),
  );
  if (scenes.length > 1)
    place.append(
      picker(
        scenes.map((scene) => entries()[scene.entry].label),
        chosen,
        (i) => {
          chosen = i;
          change();
        },
        "method",
      ),
    );
  return () => scenes[chosen];
}

/** Confidence, and the aggregation weights that follow from it. */
function confidenceSection(add) {
  const { confidence: scenes, map } = group();
  if (!scenes || !scenes.length) return null;
  const { card, grid, section } = add(
    "confidence",
    "Confidence",
    "Each client’s confidence in its prototype of a class, and the weight it gets in the global prototype: α = confidence / Σ confidence over clients. Empty cells are classes that a client does not have.",
  );
  const tools = el("div", { class: "tools row" });
  const slot = el("div", { class: "grow" });
  section.querySelector(".lead").after(tools);
  let at = 0;
  const scene = methodPicker(tools, scenes, reset);
  let part = "trust";
  const left = card("w6", "Confidence");
  const right = card("w6", "Weight α in the global prototype");
  grid.append(left, right);
  const height = Math.min(760, 130 + Math.max(12, 340 / map.clients.length) * map.clients.length);
  const picture = (key, name) => () => {
    const table = scene().parts[key];
    if (!table) return null;
    return heat({
      xs: map.names,
      ys: map.clients.map(clientLabel),
      xname: "class",
      yname: "",
      low: 0,
      high: table.values.reduce((most, v) => (v > most ? v : most), 1e-9),
      value: (x, y) => table.at(at, y, x),
      text: (x, y, v) =>
        tip(`${clientTitle(map.clients[y])}, class ${map.names[x]}`, [
          [name(), fixed(v, 3)],
          ...Object.keys(scene().parts)
            .filter((other) => other !== key && other !== "alpha")
            .map((other) => [PARTS[other], fixed(scene().parts[other].at(at, y, x), 3)]),
          ["training images", whole(map.counts.at(y, x))],
        ]),
    });
  };
  const one = chart(left, picturePart, { tall: height, label: "confidence per client and class" });
  const two = chart(
    right,
    picture("alpha", () => "weight α"),
    { tall: height, label: "aggregation weight per client and class" },
  );
  function picturePart() {
    return picture(part, () => PARTS[part])();
  }
  const switches = el("div", {});
  left.querySelector("header").append(switches);
  function reset() {
    at = scene().rounds.length - 1;
    if (!scene().parts[part]) part = "trust";
    const parts = Object.fromEntries(Object.entries(PARTS).filter(([key]) => scene().parts[key]));
    switches.replaceChildren(
      ...(Object.keys(parts).length > 1
        ? [
            choice(
              parts,
              part,
              (key) => {
                part = key;
                one.draw();
              },
              "part of the confidence",
            ),
          ]
        : []),
    );
    slot.replaceChildren(
      rounds(scene().rounds, (t) => {
        at = t;
        one.draw();
        two.draw();
      }),
    );
    if (left.isConnected && drawn.some((item) => item.chart && item.card === left)) {
      one.draw();
      two.draw();
    }
  }
  reset();
  tools.append(slot);
  return null;
}
