"use strict";
// Tables sort by a click on a heading; figures become interactive when they come into view.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") !== "descending";
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = (row) => row.cells[column].dataset.value;
    const compare = (one, two) => {
      if (key(one) === undefined || key(two) === undefined) return (key(one) === undefined) - (key(two) === undefined);
      const [left, right] = [Number(key(one)), Number(key(two))];
      const order = Number.isNaN(left) || Number.isNaN(right) ? key(one).localeCompare(key(two)) : left - right;
      return down ? -order : order;
    };
    table.tBodies[0].append(...[...table.tBodies[0].rows].sort(compare));
  }));
}

// A table that is wider than its place says so, also where the browser hides the bar to scroll it by.
for (const place of document.querySelectorAll(".scroll")) {
  const hint = document.createElement("p");
  hint.className = "hint";
  hint.textContent = "More columns to the right: scroll the table.";
  place.before(hint);
  const look = () => { hint.hidden = place.scrollWidth <= place.clientWidth + 1; };
  look();
  addEventListener("resize", look);
}

// Panels one below the other, no wider than the screen, and words that fit.
function narrowed(spec, width) {
  const room = Math.max(150, width - 175);
  const shrink = (node) => {
    if (Array.isArray(node)) { node.forEach(shrink); return; }
    if (node === null || typeof node !== "object") return;
    if (typeof node.columns === "number" && node.concat) node.columns = 1;
    if (typeof node.width === "number" && node.width > room) node.width = room;
    if (node.title && Array.isArray(node.title.subtitle)) node.title.subtitle = wrapped(node.title.subtitle.join(" "), width);
    if (node.title && typeof node.title.text === "string") node.title.text = wrapped(node.title.text, width * 0.85);
    const chosen = node.title?.text?.expr?.match(/^\[(".*"), (\w+)\]$/);
    if (chosen) {
      const lines = wrapped(JSON.parse(chosen[1]), width * 0.85).map((line) => JSON.stringify(line));
      node.title = {...node.title, fontSize: 12, text: {expr: `[${lines.join(", ")}, ${chosen[2]}]`}};
    }
    for (const name of ["concat", "layer", "spec"]) if (node[name]) shrink(node[name]);
    if (node.encoding && node.encoding.color && node.encoding.color.legend) node.encoding.color.legend.columns = 1;
  };
  shrink(spec);
  spec.config.axis.labelLimit = 130;
  return spec;
}

function wrapped(text, width) {
  const most = Math.floor(width / 7), lines = [""];
  for (const word of text.split(" ")) {
    const last = lines[lines.length - 1];
    if (last && last.length + word.length + 1 > most) lines.push(word);
    else lines[lines.length - 1] = last ? last + " " + word : word;
  }
  return lines;
}

const specs = JSON.parse(document.getElementById("specs")?.textContent || "{}");
const NARROW = 640;

async function enliven(figure) {
  const live = figure.querySelector(".live"), spec = structuredClone(specs[figure.dataset.name]);
  const width = figure.clientWidth - 24;
  await window.vegaEmbed(live, width < NARROW ? narrowed(spec, width) : spec, {renderer: "svg", actions: false});
  const svg = live.querySelector("svg");
  // Shrinks with its card, like the still picture.
  svg.setAttribute("viewBox", `0 0 ${svg.getAttribute("width")} ${svg.getAttribute("height")}`);
  const list = live.querySelector(".vega-bindings");
  if (list) live.prepend(list);
  figure.querySelector(".still").classList.add("gone");
}

if (window.vegaEmbed && "IntersectionObserver" in window) {
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) {
      seen.unobserve(entry.target);
      enliven(entry.target).catch((error) => console.error(error));
    }
  }, {rootMargin: "400px"});
  document.querySelectorAll(".figure").forEach((figure) => seen.observe(figure));
}
