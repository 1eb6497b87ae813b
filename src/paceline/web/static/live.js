"use strict";
// What runs now: its curves, its log, what ended. Drawn anew from each event; all text goes in as text.

const SVG = "http://www.w3.org/2000/svg";
const CURVE_WIDTH = 240, CURVE_HEIGHT = 64, LINE_HEIGHT = 30;

function svg(tag, attributes) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

function drawCurve(curve) {
  const xs = curve.points.map(([x]) => x), ys = curve.points.map(([, y]) => y);
  const [left, right, high] = [Math.min(...xs), Math.max(...xs), Math.max(...ys)];
  // A loss is read by how it falls; what is used, by how far it is from nothing.
  const low = curve.name === "loss" ? Math.min(...ys) : Math.min(0, ...ys);
  const place = ([x, y]) => [
    right > left ? ((x - left) / (right - left)) * CURVE_WIDTH : CURVE_WIDTH,
    CURVE_HEIGHT - 3 - (high > low ? (y - low) / (high - low) : 0.5) * (CURVE_HEIGHT - 6),
  ];
  const at = curve.points.map((point) => place(point).map((value) => value.toFixed(1)).join(","));
  const words = `${curve.name}: ${curve.now} now, from ${curve.low} to ${curve.high}`;
  const picture = svg("svg", { viewBox: `0 0 ${CURVE_WIDTH} ${CURVE_HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": words });
  picture.append(svg("polygon", { points: [`${place(curve.points[0])[0]},${CURVE_HEIGHT}`, ...at, `${CURVE_WIDTH},${CURVE_HEIGHT}`].join(" ") }));
  picture.append(svg("polyline", { points: at.length > 1 ? at.join(" ") : `0,${at[0].split(",")[1]} ${at[0]}` }));
  const range = curve.low === curve.high ? "" : `${curve.low} to ${curve.high}`;
  const along = curve.along === "steps" ? `by step, to ${Math.round(right)}` : `over ${Math.round(right)} s`;
  return make("div", { class: "curve", "data-curve": curve.name },
    make("p", {}, make("span", { class: "soft" }, curve.name), " ", make("b", {}, curve.now)), picture,
    make("p", { class: "soft" }, make("span", {}, range), make("span", {}, along)));
}

function stopButton(job) {
  return make("button", { type: "button", onclick: (event) => {
    event.target.disabled = true;
    post("/stop/" + job.number, { quiet: "1" });
  } }, "Stop");
}

function jobLinks(job) {
  const known = job.study ? [make("a", { href: "/results" + job.query }, "Results"), make("a", { href: "/figures" + job.query }, "Figures")] : [];
  return make("span", { class: "links" }, job.answer ? make("a", { href: job.answer }, "Answer") : null, ...known,
    job.form ? make("a", { href: job.form }, "Change and start again") : null);
}

function drawJob(job) {
  const count = job.total ? `${job.finished} of ${job.total} runs` : "";
  const more = [count, job.stored ? `${job.stored} were stored already` : "", job.skipped ? `${job.skipped} skipped` : ""];
  const ended = job.ended.slice().reverse().map((run) => make("li", {},
    make("b", { class: run.status }, run.status), ` ${run.name}: ${run.result} `, make("span", { class: "soft" }, `(${run.took})`)));
  const log = job.log ? make("details", { class: "log" }, make("summary", {}, "Log of this run"), make("pre", { tabindex: 0 }, job.log)) : null;
  return make("article", { class: "job " + job.state.replace(" ", "-"), "data-number": job.number },
    make("p", { class: "line" }, make("strong", { class: "state" }, job.state), make("span", {}, job.study),
      make("span", { class: "soft" }, more.filter(Boolean).join(" · ")), make("span", { class: "left" }, job.left),
      job.open ? (job.state === "stopping" ? null : stopButton(job)) : jobLinks(job)),
    make("p", { class: "command" }, make("code", {}, job.command)),
    job.total ? make("progress", { max: 1, value: job.open ? job.share : job.finished / job.total, "aria-label": count }) : null,
    job.now ? make("p", { class: "soft now" }, job.now) : null,
    job.open && job.curves.length ? make("div", { class: "curves" }, ...job.curves.map(drawCurve)) : null,
    job.messages ? make("pre", {}, job.messages) : null, log,
    ended.length ? make("ul", {}, ...ended) : null);
}

// Only what differs changes: a button that is being pressed, words that are marked and a list that was scrolled stay.
function renew(old, fresh) {
  if (old.nodeName !== fresh.nodeName) return old.replaceWith(fresh);
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  for (const { name } of [...old.attributes]) if (name !== "open" && !fresh.hasAttribute(name)) old.removeAttribute(name);
  const [before, after] = [[...old.childNodes], [...fresh.childNodes]];
  after.forEach((node, place) => (before[place] ? renew(before[place], node) : old.append(node)));
  for (const node of before.slice(after.length)) node.remove();
}

function showJobs(place, state) {
  for (const job of state.jobs) {
    const fresh = drawJob(job), old = place.querySelector(`[data-number="${job.number}"]`);
    const before = old?.querySelector("details.log"), text = before?.lastChild;
    // A failed run's log is what one looks for next; who reads further up in a log stays there.
    const failed = job.state === "some failed" && !old?.classList.contains("some-failed");
    if (failed || before?.open) fresh.querySelector("details.log")?.setAttribute("open", "");
    const atEnd = !text || text.scrollTop === 0 || text.scrollHeight - text.scrollTop - text.clientHeight < LINE_HEIGHT;
    if (old) renew(old, fresh);
    else place.prepend(fresh);
    const log = place.querySelector(`[data-number="${job.number}"] details.log[open] pre`);
    if (log && atEnd) log.scrollTop = log.scrollHeight;
  }
  for (const shown of place.querySelectorAll(".job")) {
    if (!state.kept.includes(Number(shown.dataset.number))) shown.remove();
  }
}
