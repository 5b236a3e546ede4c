// Shows the status of a migration, and asks for it again every two seconds while the page is visible.
// Names come from outside: every text becomes a text node, never markup, and control characters become visible.
"use strict";

const EVERY_MS = 2000;
const PATIENCE_MS = 10000;
const STALE_MS = 20000;
const MOST_ROWS = 100;
const MOST_EVENTS = 100;
const NEEDS = ["person", "waits", "promoting", "copying", "steady", "done"];
const SVG = "http://www.w3.org/2000/svg";
// Characters that nobody sees, or that turn the direction of the text around them.
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

const at = (id) => document.getElementById(id);
const shown = (text) => String(text).replace(UNSEEN, (c) => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"));

// Makes an element; children are elements or texts.
function el(tag, options, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(options || {})) {
    if (name === "class") made.className = value;
    else made.setAttribute(name, value);
  }
  made.append(...children.map((child) => (child instanceof Node ? child : shown(child))));
  return made;
}

function draw(parent, tag, options, text) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(options)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = shown(text);
  parent.append(made);
  return made;
}

// Replaces the children of an element only if something has changed: a selection of text survives.
const drawn = new Map();
function fill(id, model, make) {
  const key = JSON.stringify(model);
  if (drawn.get(id) === key) return;
  drawn.set(id, key);
  at(id).replaceChildren(...model.map(make));
}

// figures

const known = (value) => value !== null && value !== undefined && value >= 0;

function count(value) {
  if (!known(value)) return "?";
  for (const unit of ["", "k", "M", "G"]) {
    if (value < 999.5) return unit ? value.toPrecision(3) + unit : String(Math.round(value));
    value /= 1000;
  }
  return value.toPrecision(3) + "T";
}

function bytes(value) {
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (value < 999.5) return (unit === "B" ? Math.round(value) : value.toPrecision(3)) + " " + unit;
    value /= 1000;
  }
  return value.toFixed(1) + " TB";
}

function span(seconds) {
  if (seconds < 1) return "< 1 s";
  if (seconds < 90) return Math.round(seconds) + " s";
  if (seconds < 5400) return Math.round(seconds / 60) + " min";
  if (seconds < 172800) return Math.round(seconds / 3600) + " h";
  return Math.round(seconds / 86400) + " days";
}

const pause = (ms) => (ms < 999.5 ? ms.toPrecision(3) + " ms" : (ms / 1000).toFixed(1) + " s");

function percent(part) {
  if (!known(part)) return "?";
  return part >= 1 ? "100%" : (Math.floor(part * 1000) / 10).toFixed(1) + "%";
}

function left(progress) {
  if (progress.falls_behind) return "falls behind";
  return known(progress.left_s) ? (progress.left_s === 0 ? "–" : span(progress.left_s)) : "?";
}

const clock = (ms) => new Date(ms).toLocaleTimeString([], { hourCycle: "h23" });

function moment(ms) {
  const date = new Date(ms);
  const today = date.toDateString() === new Date().toDateString();
  return (today ? "" : date.toLocaleDateString() + " ") + clock(ms);
}

// parts of the page

function showLinks(status) {
  const text = status.links.map((link) => `${link.name}: ${link.source} → ${link.target}`).join(" · ");
  at("links").textContent = shown(text || "no link yet: kmigrate link create NAME --source CLUSTER --target CLUSTER");
  document.title = status.links.length ? shown(status.links.map((link) => link.name).join(", ")) + " – kmigrate" : "kmigrate";
}

function card([label, value, small]) {
  return el("div", {}, el("dt", {}, label), el("dd", {}, value, ...(small ? [el("small", {}, small)] : [])));
}

function showOverview(status) {
  const progress = status.progress;
  const lags = status.topics.map((topic) => topic.lag);
  const lag = lags.every(known) ? lags.reduce((sum, each) => sum + each, 0) : -1;
  const promoted = (all) => all.filter((each) => each.phase === "promoted").length;
  const rate = progress.copied_bytes_per_s > 0 ? bytes(progress.copied_bytes_per_s) + "/s" : "";
  fill("overview", [
    ["Topics promoted", `${promoted(status.topics)} of ${status.topics.length}`],
    ["Groups promoted", `${promoted(status.groups)} of ${status.groups.length}`],
    ["Copied", status.topics.length ? percent(progress.copied) : "–"],
    ["Records to copy", count(lag)],
    ["Records/s copied", count(progress.copied_per_s), rate],
    ["Time left", left(progress), progress.left_s > 0 ? "until the copy has caught up" : ""],
  ], card);
}

function processes(status) {
  const found = [];
  for (const link of status.links) {
    const mirrors = status.mirrors.filter((mirror) => mirror.link === link.name);
    found.push([`mirror of ${link.name}` + (mirrors.length > 1 ? ` × ${mirrors.length}` : ""), mirrors.some((mirror) => mirror.active)]);
  }
  const routers = status.routers.map((router) => [
    `router ${router.name} ${router.bootstrap}` + (router.alive ? ` · ${count(router.connections)} connections` : " is silent"),
    router.alive,
  ]);
  found.push(...(routers.length ? routers : [["no router", false]]));
  found.push(["controller", status.controllers.some((controller) => controller.active)]);
  return found;
}

function showProcesses(status) {
  fill("processes", processes(status), ([text, runs]) => el("li", runs ? {} : { class: "off" }, text));
  const notes = [...status.warnings];
  for (const link of status.links) notes.push(...(link.trouble ? [link.trouble] : []), ...link.notes, ...link.disk_low);
  fill("notes", notes, (text) => el("li", {}, text));
}

const need = (each) => NEEDS.indexOf(each.attention.need);
const name = (each) => each.topic || each.group;

function showAttention(status) {
  const all = [...status.topics, ...status.groups].filter((each) => need(each) <= 1).sort((a, b) => need(a) - need(b));
  at("attention-section").hidden = all.length === 0;
  at("attention-count").textContent = all.length;
  const model = all.slice(0, 20).map((each) => [each.attention.need, name(each), each.attention.reason]);
  if (all.length > model.length) model.push(["waits", "", `and ${all.length - model.length} more, first in the tables below`]);
  fill("attention", model, ([level, title, reason]) => el("li", { class: level }, el("span", { class: "name" }, title), " ", reason));
}

const ROLLING_BACK = ["rollback-pending", "rollback-fencing", "rollback-fenced", "rolling-back"];

function phaseClass(phase) {
  if (phase === "promoted") return "promoted";
  if (["promote-pending", "fencing", "fenced", "promoting"].concat(ROLLING_BACK).includes(phase)) return "promoting";
  return phase === "mirroring" || phase === "mirrored" ? "mirroring" : "";
}

const phaseCell = (phase, note) => {
  const badge = el("span", { class: "phase " + phaseClass(phase) }, phase);
  return el("td", { "data-label": "Phase" }, badge, ...(note ? [" " + note] : []));
};
const number = (label, text) => el("td", { class: text === "" ? "n empty" : "n", "data-label": label }, text);
const nameCell = (label, text) => el("td", { "data-label": label }, el("span", { class: "name" }, text));
const why = (text) => (text ? el("td", { class: "why", "data-label": "Waits for" }, text) : el("td", { class: "empty" }));

function topicRow([topic, phase, paused, ...rest]) {
  const labels = ["Lag", "Copied", "Records/s", "Left", "Verified"];
  return el("tr", {}, nameCell("Topic", topic), phaseCell(phase, paused ? "paused" : ""), ...labels.map((label, i) => number(label, rest[i])), why(rest[5]));
}

const lagText = (records, seconds) => count(records) + (known(seconds) && records > 0 ? ` · ${span(seconds)}` : "");

// The copy that keeps the source complete while the topic can be rolled back.
const backText = (topic) => (topic.way_back === "open" ? `back: ${lagText(topic.way_back_lag, topic.way_back_lag_seconds)}` : "");

function topicModel(topic, progress) {
  const promoted = topic.phase === "promoted" || ROLLING_BACK.includes(topic.phase);
  const lag = promoted ? backText(topic) : lagText(topic.lag, topic.lag_seconds);
  const verified = known(topic.unverified) ? (topic.unverified ? `${count(topic.unverified)} to go` : "all") : "";
  return [
    topic.topic, topic.phase, topic.paused, lag, promoted ? "" : percent(progress.copied),
    count(promoted ? progress.written_per_s : progress.copied_per_s), promoted ? "" : left(progress), verified, topic.attention.reason,
  ];
}

let all = false;
let newest = null;

function showTopics(status) {
  const progress = new Map(status.progress.topics.map((each) => [JSON.stringify([each.link, each.topic]), each]));
  const wanted = at("filter").value.trim().toLowerCase();
  const fits = (topic) => `${topic.topic} ${topic.phase} ${topic.attention.reason}`.toLowerCase().includes(wanted);
  const found = status.topics.filter(fits).sort((a, b) => need(a) - need(b));
  const rows = all ? found : found.slice(0, MOST_ROWS);
  at("topics-count").textContent = found.length === status.topics.length ? found.length : `${found.length} of ${status.topics.length}`;
  at("more").hidden = rows.length === found.length;
  at("more").textContent = `Show all ${found.length}`;
  const model = rows.map((topic) => topicModel(topic, progress.get(JSON.stringify([topic.link, topic.topic])) || {}));
  fill("topic-rows", model, topicRow);
}

function groupModel(group) {
  const source = group.source_members === null ? -1 : group.source_members.length;
  const promoted = group.phase === "promoted";
  return [
    group.group, group.phase, group.auto && !promoted ? "auto" : "", count(known(group.direct_members) ? group.direct_members : source),
    promoted ? "–" : count(group.router_members), count(group.target_members), count(group.lag), group.attention.reason,
  ];
}

function groupRow([group, phase, auto, direct, routers, target, lag, reason]) {
  return el(
    "tr", {}, nameCell("Group", group), phaseCell(phase, auto), number("Direct", direct), number("At routers", routers),
    number("On target", target), number("Lag", lag), why(reason),
  );
}

function showGroups(status) {
  at("groups-count").textContent = status.groups.length;
  const sorted = [...status.groups].sort((a, b) => need(a) - need(b)).slice(0, 500);
  fill("group-rows", sorted.map(groupModel), groupRow);
}

const WORDS = {
  "link-created": "link created", "link-finished": "link finished", mirrored: "mirrored", "promote-asked": "promote asked",
  fenced: "writers held", barrier: "barrier known", flipped: "promoted", "rollback-asked": "rollback asked for", "rolled-back": "rolled back", "given-up": "given up",
};

function eventText(event) {
  const fence = event.fence_ms >= 0 ? ` · fence ${pause(event.fence_ms)}` : "";
  return `${event.what === "topic" ? "" : event.what + " "}` + fence + (event.reason ? ` · ${event.reason}` : "");
}

function showEvents(history) {
  const model = history.events.slice(-MOST_EVENTS).reverse().map((event) => [event.at_ms, event.happened, event.name, eventText(event)]);
  fill("events", model, ([ms, happened, title, text]) =>
    el(
      "li", {}, el("time", { datetime: new Date(ms).toISOString() }, moment(ms)),
      el("span", { class: happened }, WORDS[happened] || happened),
      el("span", { class: "about" }, el("span", { class: "name" }, title), " ", text),
    ));
}

// plots

const WIDTH = 400, HEIGHT = 150, LEFT = 54, BOTTOM = 20, TOP = 8;

// Draws the frame of a plot, and returns the functions that place a moment and a figure.
function frame(svg, from, to, most, text) {
  svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
  svg.replaceChildren();
  const x = (ms) => LEFT + ((ms - from) / Math.max(1, to - from)) * (WIDTH - LEFT - 6);
  const y = (value) => HEIGHT - BOTTOM - (value / (most || 1)) * (HEIGHT - BOTTOM - TOP);
  for (const part of [0, 0.5, 1]) {
    draw(svg, "line", { class: "grid", x1: LEFT, x2: WIDTH - 6, y1: y(most * part), y2: y(most * part) });
    if (most > 0 || part === 0) draw(svg, "text", { x: LEFT - 5, y: y(most * part) + 4, "text-anchor": "end" }, text(most * part));
  }
  draw(svg, "text", { x: LEFT, y: HEIGHT - 5 }, clock(from));
  draw(svg, "text", { x: WIDTH - 6, y: HEIGHT - 5, "text-anchor": "end" }, clock(to));
  return [x, y];
}

function say(svg, text) {
  svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
  svg.replaceChildren();
  draw(svg, "text", { x: WIDTH / 2, y: HEIGHT / 2, "text-anchor": "middle" }, text);
}

// Draws a line for each series; an unknown figure leaves a gap.
function lines(svg, samples, fields, text) {
  if (samples.length < 2) {
    say(svg, "not enough samples yet");
    return;
  }
  const values = samples.flatMap((sample) => fields.map(([field]) => sample[field])).filter((value) => value !== null);
  const most = Math.max(0, ...values);
  const [x, y] = frame(svg, samples[0].at_ms, samples[samples.length - 1].at_ms, most, text);
  for (const [field, look] of fields) {
    let path = "", pen = "M";
    for (const sample of samples) {
      if (sample[field] === null) pen = "M";
      else {
        path += `${pen}${x(sample.at_ms).toFixed(1)} ${y(sample[field]).toFixed(1)}`;
        pen = "L";
      }
    }
    draw(svg, "path", { class: "line " + look, d: path || "M0 0" });
  }
}

function showPauses(status) {
  const svg = at("pause-plot");
  const flips = status.topics
    .filter((topic) => topic.phase === "promoted")
    .map((topic) => [topic.since_ms, Math.max(-1, ...topic.partitions.map((partition) => partition.hold_ms)), topic.topic])
    .filter(([, held]) => held >= 0)
    .sort((a, b) => a[0] - b[0]);
  if (!flips.length) {
    say(svg, status.topics.some((topic) => topic.phase === "promoted") ? "no writer was held" : "no topic is promoted now");
    return;
  }
  const first = flips[0][0], last = flips[flips.length - 1][0], room = Math.max(1000, (last - first) * 0.05);
  const most = Math.max(...flips.map(([, held]) => held));
  const [x, y] = frame(svg, first - room, last + room, most, (value) => (value ? pause(value) : "0"));
  for (const [ms, held, topic] of flips) {
    draw(svg, "line", { class: "stem", x1: x(ms), x2: x(ms), y1: y(0), y2: y(held) });
    const dot = draw(svg, "circle", { class: "dot", cx: x(ms), cy: y(held), r: 4 });
    draw(dot, "title", {}, `${topic}: ${pause(held)} at ${clock(ms)}`);
  }
  svg.setAttribute("aria-label", `Pause of writers at ${flips.length} flips, ${pause(most)} at most`);
}

function showPlots(status, history) {
  const samples = history.samples;
  lines(at("lag-plot"), samples, [["lag", "a"]], count);
  lines(at("rate-plot"), samples, [["copied_per_s", "a"], ["written_per_s", "b"]], count);
  showPauses(status);
  const last = samples[samples.length - 1];
  if (last) at("lag-plot").setAttribute("aria-label", `Records to copy over time, now ${count(last.lag)}`);
}

// the loop

let answered = 0;

function showAge(trouble) {
  const pill = at("age"), age = newest ? Date.now() - answered : Infinity;
  const stale = age > STALE_MS || Boolean(trouble);
  pill.className = "pill " + (stale ? "stale" : "live");
  pill.textContent = newest ? `figures of ${moment(newest.at_ms)}` : "no figures yet";
  at("banner").hidden = !trouble;
  if (trouble) at("banner").textContent = shown(trouble);
}

function show(status, history) {
  newest = status;
  showLinks(status);
  showOverview(status);
  showProcesses(status);
  showAttention(status);
  showTopics(status);
  showGroups(status);
  showEvents(history);
  showPlots(status, history);
}

const get = (path) => fetch(path, { signal: AbortSignal.timeout(PATIENCE_MS) });

async function ask() {
  try {
    const [status, history] = await Promise.all([get("api/status"), get("api/history")]);
    const told = await history.json();
    if (status.ok) {
      show(await status.json(), told);
      answered = Date.now();
    }
    const since = newest ? " The figures below are older." : "";
    showAge(told.trouble ? `kmigrate cannot ask the clusters: ${told.trouble}.${since}` : "");
  } catch (error) {
    showAge("kmigrate does not answer: its process has ended, or the network is cut." + (newest ? " The figures below are older." : ""));
  }
}

async function loop() {
  if (!document.hidden) await ask();
  setTimeout(loop, EVERY_MS);
}

at("filter").addEventListener("input", () => newest && showTopics(newest));
at("more").addEventListener("click", () => {
  all = true;
  if (newest) showTopics(newest);
});
document.addEventListener("visibilitychange", () => document.hidden || ask());
loop();
