"use strict";
// The data, the state of the page, and helpers that build elements and format numbers.

const NONE = 65535; // a number that is missing in a packed array
const DATA = JSON.parse(document.getElementById("report-data").textContent, (_, value) =>
  value && value.b64 !== undefined ? unpack(value) : value,
);
const state = { group: 0, protocol: null, axis: "rounds", hidden: new Set(), theme: null };

/** Unpack an array: return its values, its shape, and a function that returns one value by its index. */
function unpack({ b64, shape, low, step }) {
  const bytes = Uint8Array.from(atob(b64), (letter) => letter.charCodeAt(0));
  const raw = new Uint16Array(bytes.buffer);
  const values = Float32Array.from(raw, (v) => (v === NONE ? NaN : low + step * v));
  const strides = shape.map((_, i) => shape.slice(i + 1).reduce((a, b) => a * b, 1));
  return { values, shape, at: (...index) => values[index.reduce((sum, i, d) => sum + i * strides[d], 0)] };
}

const group = () => DATA.groups[state.group];
/** Return what a person reads for a client: its name, or its number. */
const clientTitle = (client) => group().map?.client_names[client] ?? `client ${client}`;
/** Return the label of a client on an axis. */
const clientLabel = (client) => group().map?.client_names[client]?.slice(0, 14) ?? String(client);
const entries = () => group().entries;
const shown = (i) => !state.hidden.has(entries()[i].label);
const ranking = () => group().ranking[state.protocol] || { rows: entries().map(() => null) };
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const phone = () => document.documentElement.clientWidth < 560;
const known = (v) => v !== null && v !== undefined && !Number.isNaN(v);

/** Build an element from attributes and children; text is never parsed as HTML. */
function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") node.style.cssText = value;
    else if (value !== null && value !== undefined && value !== false)
      node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

/** Escape a text for the HTML of a tooltip. */
const safe = (text) => String(text).replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);
const fixed = (value, digits = 2) => (known(value) ? value.toFixed(digits) : "–");
const short = (text, most = 14) => (text.length > most ? text.slice(0, most - 1) + "…" : text);
const whole = (value) => Math.round(value).toLocaleString("en");

/** Format a number of bytes in a readable unit. */
function amount(bytes) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  while (bytes >= 999.5 && at < units.length - 1) {
    bytes /= 1000;
    at += 1;
  }
  return `${at === 0 || bytes >= 99.5 ? Math.round(bytes) : bytes.toFixed(1)} ${units[at]}`;
}

/** Format seconds in a readable unit. */
function duration(seconds) {
  if (seconds < 1) return `${Math.round(1000 * seconds)} ms`;
  if (seconds < 100) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  const minutes = Math.round(seconds / 60);
  return minutes < 100 ? `${minutes} min` : `${(minutes / 60).toFixed(1)} h`;
}

/** Build a dot in a method's colour, followed by its name. */
function who(entry, tag = "span") {
  return el(tag, { class: "who" }, el("i", { class: "dot", style: `--dot:${entry.colour}` }), entry.label);
}

/** Build a row of buttons for a few choices; `change` is called with the chosen one. */
function choice(names, chosen, change, label) {
  const box = el("div", { class: "switch", role: "group", "aria-label": label });
  for (const [value, text] of Object.entries(names)) {
    box.append(
      el(
        "button",
        {
          type: "button",
          "data-value": value,
          "aria-pressed": String(value === String(chosen)),
          onclick: () => {
            for (const other of box.children) other.setAttribute("aria-pressed", String(other.dataset.value === value));
            change(value);
          },
        },
        text,
      ),
    );
  }
  return box;
}

/** Build a drop-down list; `change` is called with the index of the chosen entry. */
function picker(names, chosen, change, label) {
  const box = el("select", { "aria-label": label, onchange: () => change(Number(box.value)) });
  names.forEach((name, i) => box.append(el("option", { value: i, selected: i === chosen }, name)));
  return box;
}

/** Build a slider over rounds with a play button; `change` is called with the index of the round. */
function rounds(list, change) {
  const output = el("output", {}, "");
  const input = el("input", {
    type: "range",
    min: 0,
    max: list.length - 1,
    value: list.length - 1,
    "aria-label": "round",
  });
  const tell = () => {
    output.textContent = `round ${list[input.value]}`;
    change(Number(input.value));
  };
  const play = el("button", { type: "button", class: "icon", "aria-label": "play", onclick: start }, icon("play"));
  let timer = null;
  function stop() {
    clearInterval(timer);
    timer = null;
    play.replaceChildren(icon("play"));
  }
  function start() {
    if (timer) return stop();
    if (Number(input.value) >= list.length - 1) input.value = 0;
    play.replaceChildren(icon("pause"));
    timer = setInterval(
      () => {
        if (!input.isConnected || Number(input.value) >= list.length - 1) return stop();
        input.value = Number(input.value) + 1;
        tell();
      },
      Math.max(60, 4000 / list.length),
    );
  }
  input.addEventListener("input", tell);
  output.textContent = `round ${list[list.length - 1]}`;
  return el("div", { class: "slider", hidden: list.length < 2 }, play, input, output);
}

const ICONS = {
  play: "M4 2.5v11l9-5.5z",
  pause: "M4 2.5h3v11H4zM9 2.5h3v11H9z",
  moon: "M13.5 10.2A6 6 0 0 1 5.8 2.5a6 6 0 1 0 7.7 7.7z",
  sun: "M8 4.5a3.5 3.5 0 1 0 0 7 3.5 3.5 0 0 0 0-7zM7.3 0h1.4v2.8H7.3zm0 13.2h1.4V16H7.3zM0 7.3h2.8v1.4H0zm13.2 0H16v1.4h-2.8zM2 3l1-1 2 2-1 1zm9 9 1-1 2 2-1 1zM2 13l2-2 1 1-2 2zm9-9 2-2 1 1-2 2z",
};

/** Build an icon by its name. */
function icon(name) {
  const picture = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  picture.setAttribute("viewBox", "0 0 16 16");
  picture.setAttribute("aria-hidden", "true");
  path.setAttribute("d", ICONS[name]);
  picture.append(path);
  return picture;
}
