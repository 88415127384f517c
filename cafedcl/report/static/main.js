"use strict";
// The whole page: sections, switches, themes and printing.

const SECTIONS = [
  rankingSection,
  curvesSection,
  dataSection,
  clientsSection,
  classesSection,
  probabilitiesSection,
  wrongSection,
  confidenceSection,
  prototypesSection,
  loopSection,
  ablationSection,
  samplesSection,
  costSection,
  runsSection,
];
const TITLES = {
  ranking: "Ranking",
  curves: "Curves",
  data: "Data",
  clients: "Clients",
  classes: "Classes",
  probabilities: "Probabilities",
  wrong: "Mistakes",
  confidence: "Confidence",
  prototypes: "Prototypes",
  loop: "Bias loop",
  ablation: "Ablation",
  samples: "Images",
  cost: "Cost",
  runs: "Reproduce",
};

let updates = []; // functions that update what is not a chart after a change of the state

/** Update the whole page after a change of the state. */
function follow() {
  updates.forEach((update) => update());
  redraw();
}

/** Build the page for the chosen setting. */
function build() {
  clear();
  const main = document.getElementById("top");
  const nav = document.getElementById("nav");
  main.replaceChildren();
  nav.replaceChildren();
  const known = Object.keys(group().ranking);
  if (!known.includes(state.protocol)) state.protocol = known.includes(group().protocol) ? group().protocol : known[0];
  state.hidden = new Set([...state.hidden].filter((label) => entries().some((entry) => entry.label === label)));
  controls();
  updates = [headline(main)];
  const add = (id, title, lead) => {
    const grid = el("div", { class: "grid" });
    const section = el(
      "section",
      { id, "data-panel": id },
      el("h2", {}, title),
      el("p", { class: "lead" }, lead),
      grid,
    );
    main.append(section);
    nav.append(el("a", { href: `#${id}` }, TITLES[id]));
    const card = (width, name, note) =>
      el(
        "div",
        { class: `card ${width}` },
        el("header", {}, el("h3", {}, name)),
        note ? el("p", { class: "note" }, note) : null,
      );
    return { section, grid, card };
  };
  for (const make of SECTIONS) updates.push(make(add) || (() => {}));
  follow();
  spy();
}

/** Build the switches in the top bar. */
function controls() {
  const box = document.getElementById("controls");
  const short = { server: "server", own: "own", "own-prior": "own + log π" };
  const long = { server: "server’s model", own: "own models", "own-prior": "own models + log π" };
  const protocols = Object.fromEntries(
    Object.entries(phone() ? short : long).filter(([name]) => name in group().ranking),
  );
  const both = Object.keys(group().ranking).length > 1;
  const theme = el(
    "button",
    {
      type: "button",
      class: "icon",
      id: "theme",
      "aria-label": "light or dark",
      onclick: () => {
        localTheme = state.theme === "dark" ? "light" : "dark";
        applyTheme();
      },
    },
    icon(state.theme === "dark" ? "sun" : "moon"),
  );
  box.replaceChildren(
    ...[
      DATA.groups.length > 1
        ? picker(
            DATA.groups.map((one) => one.title),
            state.group,
            (i) => {
              state.group = i;
              build();
              scrollTo(0, 0);
            },
            "setting",
          )
        : null,
      both
        ? choice(
            protocols,
            state.protocol,
            (value) => {
              state.protocol = value;
              follow();
            },
            "whose model is scored",
          )
        : null,
      theme,
    ].filter(Boolean),
  );
  const chips = entries().map((entry) => {
    const chip = el(
      "button",
      {
        type: "button",
        class: "chip",
        "data-method": entry.label,
        "aria-pressed": String(!state.hidden.has(entry.label)),
        onclick: () => toggle(entry.label),
      },
      el("i", { class: "dot", style: `--dot:${entry.colour}` }),
      entry.label,
    );
    return chip;
  });
  const methods = document.getElementById("methods");
  methods.replaceChildren(...chips);
  methods.hidden = chips.length < 2;
}

/** Show or hide a method everywhere; the last one shown cannot be hidden. */
function toggle(label) {
  if (state.hidden.has(label)) state.hidden.delete(label);
  else if (state.hidden.size < entries().length - 1) state.hidden.add(label);
  for (const chip of document.querySelectorAll(".chip"))
    chip.setAttribute("aria-pressed", String(!state.hidden.has(chip.dataset.method)));
  follow();
}

let localTheme = null; // the reader's choice; null follows the system
const dark = matchMedia("(prefers-color-scheme: dark)");

/** Apply the reader's theme, or the system's. */
function applyTheme() {
  state.theme = document.documentElement.classList.contains("printing")
    ? "light"
    : localTheme || (dark.matches ? "dark" : "light");
  document.documentElement.dataset.theme = state.theme;
  document.getElementById("theme")?.replaceChildren(icon(state.theme === "dark" ? "sun" : "moon"));
  if (updates.length) follow();
}

let callback = null; // observes which section is on the screen

/** Highlight the current section in the navigation. */
function spy() {
  callback?.disconnect();
  const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
  callback = new IntersectionObserver(
    (seen) => {
      for (const { target, isIntersecting } of seen) {
        if (isIntersecting) for (const [id, link] of links) link.classList.toggle("here", id === target.id);
      }
    },
    { rootMargin: "-30% 0px -65% 0px" },
  );
  document.querySelectorAll("section").forEach((section) => callback.observe(section));
}

/** Switch between the layout for printing and the one for the screen. */
function printing(on) {
  document.documentElement.classList.toggle("printing", on);
  applyTheme();
}

let width = innerWidth;
addEventListener("resize", () => {
  if (innerWidth !== width) {
    width = innerWidth;
    redraw();
  }
});
addEventListener("beforeprint", () => printing(true));
addEventListener("afterprint", () => printing(false));
dark.addEventListener("change", applyTheme);
document.getElementById("foot").textContent =
  `Made by cafedcl ${DATA.version} from ${DATA.runs.length} run folder${DATA.runs.length === 1 ? "" : "s"}.`;
applyTheme();
build();
document.documentElement.dataset.ready = "1";
