"use strict";
// Everything works without this file, except what moves by itself. All text goes in as text, never as HTML of our making.

const secret = document.body.dataset.secret;

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

function post(address, fields) {
  const body = new URLSearchParams(fields);
  if (!body.has("secret")) body.append("secret", secret);
  return fetch(address, { method: "POST", body });
}

/* News */

async function refresh(part) {
  const answer = await fetch(location.href);
  if (!answer.ok) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const fresh = page.getElementById(part.id);
  if (!fresh) return;
  part.replaceChildren(...fresh.childNodes);
  part.dataset.version = fresh.dataset.version;
  if (part.previousElementSibling?.classList.contains("news")) part.previousElementSibling.remove();
  prepare(part);
}

function offerNews(part) {
  if (part.previousElementSibling?.classList.contains("news")) return;
  const bar = make("p", { class: "news" }, make("button", { type: "button", onclick: async () => {
    bar.remove();
    await refresh(part);
  } }, "There are new results: show them"));
  part.before(bar);
}

function listen() {
  const jobs = document.querySelector("[data-live=jobs]");
  const part = document.querySelector("[data-part]");
  if (!jobs && !part) return;
  let source = null;
  const hear = (message) => {
    const state = JSON.parse(message.data);
    if (jobs) showJobs(jobs, state);
    if (part && part.dataset.version !== state.results) {
      if (part.id === "studies") refresh(part);
      else offerNews(part);
    }
  };
  // Only while somebody looks: a browser holds few connections to one host, and every open page would keep one.
  const follow = () => {
    source?.close();
    source = document.hidden ? null : new EventSource("/events");
    if (source) source.onmessage = hear;
  };
  document.addEventListener("visibilitychange", follow);
  addEventListener("pagehide", () => source?.close());
  addEventListener("pageshow", (event) => event.persisted && follow());
  follow();
}

/* Filters */

function prepareFilters(scope) {
  const form = scope.querySelector("[data-filters]");
  if (!form) return;
  form.addEventListener("change", async () => {
    const open = [...form.querySelectorAll("details")].findIndex((one) => one.open);
    const query = new URLSearchParams([...new FormData(form)].filter(([, value]) => value)).toString();
    history.replaceState(null, "", location.pathname + (query ? "?" + query : ""));
    const part = form.closest("[data-part]");
    await refresh(part);
    const again = part.querySelectorAll("[data-filters] details")[open];
    if (again) again.open = true;
  });
}

document.addEventListener("click", (event) => {
  for (const open of document.querySelectorAll(".filters details[open]")) if (!open.contains(event.target)) open.open = false;
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") for (const open of document.querySelectorAll(".filters details[open]")) open.open = false;
});

/* Tables */

function sortBy(table, column, header) {
  const down = header.getAttribute("aria-sort") !== "descending";
  const body = table.tBodies[0];
  const value = (row) => row.cells[column].dataset.value;
  const compare = (a, b) => {
    const [x, y] = [value(a), value(b)];
    if (x === "" || y === "") return (x === "") - (y === "");
    const order = isNaN(x) || isNaN(y) ? -x.localeCompare(y) : x - y;
    return down ? -order : order;
  };
  body.append(...[...body.rows].sort(compare));
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", down ? "descending" : "ascending");
}

function prepareTables(scope) {
  for (const table of scope.querySelectorAll("table.sortable")) {
    [...table.tHead.rows[0].cells].forEach((header, column) => {
      if (header.classList.contains("pick")) return;
      const button = make("button", { type: "button", onclick: () => sortBy(table, column, header) }, header.textContent);
      header.replaceChildren(button);
    });
  }
}

// A table that is wider than its place says so, also where the browser hides the bar to scroll it by.
function prepareWideTables(scope) {
  for (const place of scope.querySelectorAll(".scroll")) {
    const hint = make("p", { class: "hint", hidden: true }, "More columns to the right: scroll the table.");
    place.before(hint);
    new ResizeObserver(() => { hint.hidden = place.scrollWidth <= place.clientWidth + 1; }).observe(place);
  }
}

function prepareCompare(scope) {
  const form = scope.querySelector("[data-compare]");
  if (!form) return;
  const [button, words] = [form.querySelector(".compare-bar button"), form.querySelector("[data-picked]")];
  const tagging = form.querySelector("[data-tagging]");
  const picked = () => [...form.querySelectorAll("input[name=run]:checked")].map((box) => box.value);
  const tell = () => {
    const count = picked().length;
    button.disabled = count !== 2;
    for (const other of tagging.querySelectorAll("button")) other.disabled = !count;
    words.textContent = count === 2 ? "" : `${count} ticked; two can be compared, any number tagged`;
  };
  form.addEventListener("change", tell);
  tagging.hidden = false;
  // The word of a tag is no part of a comparison's address.
  form.addEventListener("submit", () => { tagging.querySelector("input").disabled = true; });
  tagging.addEventListener("click", async (event) => {
    const how = event.target.dataset.tag;
    if (!how) return;
    const fields = new URLSearchParams(picked().map((key) => ["run", key]));
    fields.append("tag", tagging.querySelector("input").value);
    fields.append("quiet", "1");
    if (how === "remove") fields.append("remove", "1");
    const answer = await post("/tags", fields);
    if (answer.ok) await refresh(form.closest("[data-part]"));
    else words.textContent = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main p").textContent;
  });
  tell();
}

/* Figures */

function prepareFigures(scope) {
  for (const link of scope.querySelectorAll("[data-explore]")) {
    link.addEventListener("click", (event) => {
      event.preventDefault();
      const picture = link.closest("figure").querySelector(".picture");
      const image = picture.querySelector("img");
      const height = Math.max(image.naturalHeight, 240);
      const narrow = picture.clientWidth < 600 ? (link.search ? "&" : "?") + "narrow=1" : "";
      const frame = make("iframe", { src: link.href + narrow, sandbox: "allow-scripts", height, title: image.alt });
      picture.replaceWith(make("div", { class: "picture" }, frame));
      link.remove();
    });
  }
}

addEventListener("message", (event) => {
  const frame = [...document.querySelectorAll(".picture iframe")].find((one) => one.contentWindow === event.source);
  if (!frame || !(event.data.height > 0)) return;
  frame.height = Math.min(event.data.height, 20000);
  frame.dataset.drawn = "yes";
});

/* The form for a new study */

function prepareStart() {
  const form = document.querySelector("[data-start]");
  if (!form) return;
  const fields = () => new URLSearchParams(new FormData(form));
  const command = form.querySelector("[data-command]");
  const [planned, timed] = [form.querySelector("[data-planned]"), form.querySelector("[data-timed]")];
  let waiting = 0, planning = 0, newest = 0;
  const show = async () => {
    const chosen = form.querySelectorAll("input[name=strategy]:checked").length;
    const otherwise = form.elements.study.value ? "as the study says" : "none chosen";
    form.querySelector("[data-count]").textContent = chosen ? `${chosen} chosen` : otherwise;
    const answer = await post("/start/command", fields());
    if (answer.ok) command.textContent = await answer.text();
  };
  const showPlan = async () => {
    const number = ++newest;
    planned.classList.add("old");
    const answer = await post("/start/plan", fields());
    const text = await answer.text();
    if (number !== newest) return;
    planned.classList.remove("old");
    planned.replaceChildren(...new DOMParser().parseFromString(text, "text/html").body.childNodes);
  };
  form.addEventListener("input", () => {
    clearTimeout(waiting);
    clearTimeout(planning);
    waiting = setTimeout(show, 150);
    planning = setTimeout(showPlan, 700);
    timed.hidden = true;
  });
  for (const list of form.querySelectorAll("[data-insert]")) {
    list.hidden = false;
    list.addEventListener("input", (event) => {
      const text = form.elements[list.dataset.insert];
      if (list.value) text.value = [...text.value.split("\n").filter(Boolean), list.value].join("\n");
      list.value = "";
    });
  }
  const plan = form.querySelector("[data-plan]");
  plan.hidden = false;
  plan.addEventListener("click", async () => {
    plan.disabled = true;
    timed.hidden = false;
    timed.textContent = "measuring a few steps of each kind of run";
    const asked = fields();
    asked.append("measure", "1");
    const answer = await post("/start/plan", asked);
    // What was measured is plain text; why nothing was, a paragraph.
    const text = await answer.text(), isPage = answer.headers.get("content-type").startsWith("text/html");
    timed.textContent = (isPage ? new DOMParser().parseFromString(text, "text/html").body.textContent : text).trim();
    plan.disabled = false;
  });
  const copy = form.querySelector("[data-copy]");
  copy.hidden = !navigator.clipboard;
  copy.addEventListener("click", async () => {
    await navigator.clipboard.writeText(command.textContent);
    copy.textContent = "Copied";
  });
  show();
  showPlan();
}

for (const form of document.querySelectorAll("[data-busy]")) {
  form.addEventListener("submit", () => {
    const button = form.querySelector("button.primary");
    button.textContent = form.dataset.busy;
    button.disabled = true;
  });
}

function prepare(scope) {
  prepareFilters(scope);
  prepareTables(scope);
  prepareWideTables(scope);
  prepareCompare(scope);
  prepareFigures(scope);
}

prepare(document);
prepareStart();
listen();
