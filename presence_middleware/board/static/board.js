// The board: asks for JSON each few seconds, and shows it. Whatever came in goes in as text.
"use strict";

const POLL = 3000, SAMPLED = 30000, DAY = 24 * 3600e3, GAP = 5 * 60e3;
const base = withoutCredentials(new URL(".", document.currentScript.src));
const given = document.documentElement.dataset;
const kinds = given.kinds.split(" "), listed = given.listed.split(" ").filter(Boolean);
const at = (id) => document.getElementById(id);
const known = new Map();  // by URL: the last answer, and its ETag
let token = "";           // in this page alone, until it is closed
let lag = 0;              // from this clock to the server's, in milliseconds

class Refused extends Error {}

// A page that was opened as https://user:password@host/ resolves relative URLs against that, and
// fetch() refuses URLs with credentials.
function withoutCredentials(url) {
  url.username = url.password = "";
  return url;
}

async function ask(path, headers = {}) {
  const url = new URL(path, base), before = known.get(path);
  const answer = await fetch(url, {
    cache: "no-store",
    headers: { Presence: "passive", ...(before && { "If-None-Match": before.etag }), ...headers },
  });
  if (answer.status === 304) return before.found;
  const found = await answer.json();
  if (answer.status === 401) throw new Refused(found.error);
  if (!answer.ok) throw new Error(found.error);
  if (found.now) lag = Date.parse(found.now) - Date.now();
  known.set(path, { etag: answer.headers.get("ETag"), found });
  return found;
}

const askNamed = (path) => ask(path, { Authorization: `Bearer ${token}` });
const query = (path, parameters) => `${path}?${new URLSearchParams(parameters)}`;

// Words

const many = (count, kind) => `${count.toLocaleString()} ${kind}${count === 1 ? "" : "s"}`;
const clock = (time) => time.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
const date = (time) => time.toLocaleDateString([], { day: "numeric", month: "long", year: "numeric" });

function ago(seen) {
  const seconds = Math.max(0, (Date.now() + lag - Date.parse(seen)) / 1000);
  if (seconds < 2) return "now";
  for (const [unit, size] of [["d", 86400], ["h", 3600], ["min", 60]])
    if (seconds >= size) return `${Math.floor(seconds / size)} ${unit} ago`;
  return `${Math.floor(seconds)} s ago`;
}

function element(name, text, attributes = {}) {
  const made = document.createElement(name);
  made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

const isolated = (id) => element("bdi", id, { dir: "auto" });

function setText(place, text) {
  if (place.textContent !== text) place.textContent = text;
}

// Numbers

function showCounts({ counts }) {
  if (!at("counts").children.length)
    at("counts").append(...kinds.map((kind) => {
      const pair = element("div", "");
      pair.append(element("dt", ""), element("dd", "", { id: `count-${kind}` }));
      return pair;
    }));
  for (const kind of kinds) {
    const place = at(`count-${kind}`);
    setText(place, counts[kind].toLocaleString());
    setText(place.previousSibling, `${kind}${counts[kind] === 1 ? "" : "s"}`);
  }
  setText(at("spoken"), `Online: ${kinds.map((kind) => many(counts[kind], kind)).join(", ")}`);
}

// Chart

function svg(name, attributes, text = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return made;
}

function niceStep(most) {
  const rough = Math.max(1, most / 3), power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((n) => n * power).find((step) => step >= rough);
}

// Where samples are missing for a while, the line breaks: nobody was there to count.
function runs(samples) {
  const found = [];
  for (const sample of samples) {
    const run = found.at(-1);
    if (run && sample.at - run.at(-1).at <= GAP) run.push(sample);
    else found.push([sample]);
  }
  return found;
}

// Return the first of the highest samples, or null if nobody was online: 0 is no peak.
const highest = (samples) => samples.reduce((most, s) => (s.count > (most ? most.count : 0) ? s : most), null);

function draw(samples) {
  const chart = at("chart"), { width, height } = chart.getBoundingClientRect();
  const now = Date.now() + lag, start = now - DAY, top = 24, bottom = height - 22;
  const peak = highest(samples), step = niceStep(peak ? peak.count : 1);
  const most = Math.max(step, Math.ceil((peak ? peak.count : 1) / step) * step);
  const left = 8 + 7.5 * most.toLocaleString().length;
  const x = (time) => left + ((time - start) / DAY) * (width - left);
  const y = (count) => bottom - (count / most) * (bottom - top);
  const point = ({ at: time, count }) => `${x(time).toFixed(1)},${y(count).toFixed(1)}`;

  const parts = [];
  for (let count = 0; count <= most; count += step)
    parts.push(
      svg("line", { class: "grid", x1: left, x2: width, y1: y(count), y2: y(count) }),
      svg("text", { x: left - 8, y: y(count) + 4, "text-anchor": "end" }, count.toLocaleString()));
  for (const time of hoursToName(start, now, width))
    parts.push(svg("text", { x: x(time), y: height - 4, "text-anchor": "middle" }, clock(time)));
  for (const run of runs(samples)) {
    const line = run.map(point).join(" L");
    parts.push(
      svg("path", { class: "area", d: `M${x(run[0].at)},${bottom} L${line} L${x(run.at(-1).at)},${bottom} Z` }),
      svg("path", { class: "line", d: `M${line} h.01` }));
  }
  if (peak) {
    const side = x(peak.at) > width - 60 ? "end" : x(peak.at) < left + 60 ? "start" : "middle";
    parts.push(
      svg("circle", { class: "peak", cx: x(peak.at), cy: y(peak.count), r: 5 }),
      svg("text", { class: "label", x: x(peak.at), y: y(peak.count) - 10, "text-anchor": side },
        `${peak.count.toLocaleString()} at ${clock(peak.at)}`));
  }
  chart.setAttribute("viewBox", `0 0 ${width} ${height}`);
  chart.replaceChildren(...parts);
}

function hoursToName(start, end, width) {
  const every = width < 500 ? 6 : 3, found = [], time = new Date(start);
  time.setMinutes(60, 0, 0);
  for (; time < end - 3600e3; time.setHours(time.getHours() + 1))
    if (time.getHours() % every === 0 && time > start + 3600e3) found.push(new Date(time));
  return found;
}

function summary(samples, ever, kind) {
  if (!samples.length) return "No samples yet: the number is taken once a minute.";
  const peak = highest(samples);
  const most = peak
    ? `The most in 24 hours: ${many(peak.count, kind)} at ${clock(peak.at)}.`
    : `No ${kind} was online in the last 24 hours.`;
  return ever ? `${most} Ever: ${ever.count.toLocaleString()} on ${date(new Date(ever.at))}.` : most;
}

function hourly(samples) {
  const most = new Map();
  for (const { at: time, count } of samples) {
    const hour = new Date(time).setMinutes(0, 0, 0);
    most.set(hour, Math.max(most.get(hour) || 0, count));
  }
  return [...most].reverse().map(([hour, count]) => {
    const row = element("tr", "");
    row.append(element("td", clock(new Date(hour))),
      element("td", count.toLocaleString(), { class: "number" }));
    return row;
  });
}

let charted = [];

async function showChart() {
  const kind = chosen("charted");
  const [{ samples }, { peak }] = await Promise.all([
    ask(query("history", { hours: 24, kind })), ask(query("peak", { kind }))]);
  charted = samples.map(([time, count]) => ({ at: new Date(time), count }));
  setText(at("summary"), summary(charted, peak, kind));
  at("hours").replaceChildren(...hourly(charted));
  draw(charted);
}

// Names

function row({ id, last_seen: seen }) {
  const made = element("tr", ""), cell = element("td", "");
  cell.append(isolated(id));
  made.append(cell, element("td", seen ? ago(seen) : "online", { class: "number" }));
  if (seen) made.lastChild.dataset.seen = seen;
  return made;
}

const captioned = (rows) => rows ? rows < 100 ? "Newest first" : "The newest 100" : "Nobody is online";

let shown = null;

async function showNames() {
  if (!token || !listed.length) return;
  const kind = chosen("listed"), found = await askNamed(query("online", { kind }));
  if (found !== shown) at("online").replaceChildren(...found.online.map(row));
  shown = found;
  setText(at("caption"), captioned(found.online.length));
  for (const cell of document.querySelectorAll("[data-seen]")) setText(cell, ago(cell.dataset.seen));
}

async function unlock(event) {
  event.preventDefault();
  token = at("token").value.trim();
  setText(at("refused"), "");
  try {
    await showNames();
    at("token").value = "";
    lock(false);
    at("id").focus();
  } catch (error) {
    setText(at("refused"), error instanceof Refused ? "That is not the token." : error.message);
    token = "";
  }
}

function lock(on) {
  at("unlock").hidden = !on;
  at("names").hidden = on;
  at("listed").hidden = on || listed.length < 2;
}

async function find(event) {
  event.preventDefault();
  const id = at("id").value.trim(), kind = chosen("listed");
  try {
    const found = await askNamed(query("last-seen", { id, kind }));
    at("found").replaceChildren(isolated(found.id), ` ${whereabouts(found)}`);
  } catch (error) {
    setText(at("found"), error.message);
  }
}

function whereabouts({ kind, online, last_seen: seen }) {
  if (online) return seen ? `is online, seen ${ago(seen)}` : "is online";
  return seen ? `is offline, last seen ${ago(seen)}` : `is no ${kind} who was seen lately`;
}

// The page

function chosen(group) {
  return document.querySelector(`#${group} input:checked`).value;
}

function choices(group, names, changed) {
  for (const name of names) {
    const label = element("label", ""), radio = element("input", "", { type: "radio", name: group, value: name });
    radio.checked = name === names[0];
    radio.addEventListener("change", changed);
    label.append(radio, element("span", `${name}s`));
    at(group).append(label);
  }
}

function state(name, text) {
  at("state").className = name;
  setText(at("state"), text);
}

// The token was changed meanwhile.
function refused(error) {
  if (!(error instanceof Refused)) throw error;
  token = "";
  lock(true);
}

let sampled = 0, waiting = 0;

async function refresh() {
  clearTimeout(waiting);
  if (document.hidden) return;
  try {
    showCounts(await ask("counts"));
    await showNames().catch(refused);
    if (Date.now() - sampled > SAMPLED) {
      await showChart();
      sampled = Date.now();
    }
    state("live", "live");
  } catch (error) {
    state("away", error instanceof TypeError ? "the site does not answer" : error.message);
  }
  clearTimeout(waiting);
  waiting = setTimeout(refresh, POLL);
}

function again() {
  sampled = 0;
  refresh();
}

choices("charted", kinds, again);
choices("listed", listed, () => { at("found").replaceChildren(); refresh(); });
at("unlock").addEventListener("submit", unlock);
at("search").addEventListener("submit", find);
at(document.querySelector("[data-names=on]") ? "unlock" : "off").hidden = false;
document.addEventListener("visibilitychange", refresh);
new ResizeObserver(() => draw(charted)).observe(at("chart"));
refresh();
