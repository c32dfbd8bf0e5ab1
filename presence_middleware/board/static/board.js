// The board: requests JSON and a chart every few seconds, and shows them. JSON is inserted as text.
// The names follow a stream of events instead, where the server has one.
"use strict";

const POLL = 3000, SAMPLED = 30000, SILENT = 40000, HELD = 300000, PATIENCE = 15000;  // milliseconds
const MOST = 100;  // names
const base = new URL(".", document.currentScript.src);
// A page that was opened as https://user:password@host/ resolves relative URLs against that, and
// fetch() refuses URLs with credentials.
base.username = base.password = "";
const given = document.documentElement.dataset;
const kinds = given.kinds.split(" "), listed = given.listed.split(" ").filter(Boolean);
const live = given.live.split(" ");  // the kinds with events
const at = (id) => document.getElementById(id);
const answers = new Map();  // by path: the last answer, and its ETag
let token = "";           // of this page, until it is closed
let lag = 0;              // from this clock to the server's, in milliseconds

class Problem extends Error {           // what the board says; nothing in an answer of others
  constructor(said) { super(typeof said === "string" ? said : ""); }
}
class Refused extends Problem {}

const reason = (error) => error instanceof Problem && error.message || "the site does not answer";

async function ask(path, headers = {}) {
  const url = new URL(path, base), before = answers.get(path);
  const answer = await fetch(url, {
    cache: "no-store",
    signal: AbortSignal.timeout(PATIENCE),
    headers: { Presence: "passive", ...(before && { "If-None-Match": before.etag }), ...headers },
  });
  if (answer.status === 304) return before.data;
  const data = answer.headers.get("Content-Type") === "image/svg+xml"
    ? localized(await answer.text()) : await answer.json();
  if (answer.status === 401) throw new Refused(data.error);
  if (!answer.ok) throw new Problem(data.error);
  if (data.now) setLag(data.now);
  answers.set(path, { etag: answer.headers.get("ETag"), data });
  return data;
}

function setLag(now) {
  lag = Date.parse(now) - Date.now();
}

const askNamed = (path) => ask(path, { Authorization: `Bearer ${token}` });
const query = (path, parameters) => `${path}?${new URLSearchParams(parameters)}`;

// Words

const many = (count, kind) => `${count.toLocaleString()} ${kind}${count === 1 ? "" : "s"}`;
const clock = (time) => time.toLocaleTimeString([], { hour: "numeric", minute: "2-digit" });
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

function showCounts(counts) {
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
}

// Chart: drawn by the server in UTC. Its numbers and times are rewritten in the format of this browser.

function localized(svg) {
  // Its style is in board.css, too: a policy of the site may forbid styles that are inline.
  svg = svg.replace(/<style>.*<\/style>/s, "");
  const chart = new DOMParser().parseFromString(svg, "image/svg+xml").documentElement;
  for (const place of chart.querySelectorAll("tspan[data-count]"))
    place.textContent = Number(place.dataset.count).toLocaleString();
  for (const place of chart.querySelectorAll("tspan[data-at]"))
    place.textContent = clock(new Date(1000 * place.dataset.at));
  chart.querySelector(".zone")?.remove();
  chart.setAttribute("aria-labelledby", "summary");
  return document.adoptNode(chart);
}

// Few widths, so that a window that is resized asks for few charts. The browser scales them.
const chartWidth = () => Math.round(at("chart").clientWidth / 40) * 40;

const PERIODS = { "1d": "a day", "7d": "a week", "30d": "a month" };

function activity(active, kind) {
  const parts = Object.entries(active).filter(([, count]) => count)
    .map(([period, count]) => `${count.toLocaleString()} in ${PERIODS[period]}`);
  return parts.length ? ` Different ${kind}s: ${parts.join(", ")}.` : "";
}

function summary(chart, ever, kind) {
  if (!chart.querySelector(".line")) return "No samples yet: the number is taken once a minute.";
  const peak = chart.querySelector(".peak");
  const most = peak
    ? `The most in 24 hours: ${many(+peak.dataset.count, kind)} at ${clock(new Date(1000 * peak.dataset.at))}.`
    : `No ${kind} was online in the last 24 hours.`;
  return ever ? `${most} Ever: ${ever.count.toLocaleString()} on ${date(new Date(ever.at))}.` : most;
}

async function showChart() {
  const kind = chosen("charted"), width = chartWidth(), offset = -new Date().getTimezoneOffset();
  const [chart, { peak }, { active }, history] = await Promise.all([
    ask(query("chart.svg", { kind, width, offset })), ask(query("peak", { kind })),
    ask(query("active", { kind })), at("table").open && ask(query("history", { kind }))]);
  if (kind !== chosen("charted")) return;  // another was chosen meanwhile
  setText(at("summary"), summary(chart, peak, kind) + activity(active, kind));
  if (chart !== at("chart").firstChild) at("chart").replaceChildren(chart);
  if (history) showHours(history);
}

function showHours({ samples }) {
  const most = new Map();
  for (const [time, count] of samples) {
    const hour = Date.parse(time) - 60000 * new Date(time).getMinutes();
    most.set(hour, Math.max(most.get(hour) || 0, count));
  }
  at("hours").replaceChildren(...[...most].reverse().map(([hour, count]) => {
    const row = element("tr", "");
    row.append(element("td", clock(new Date(hour))),
      element("td", count.toLocaleString(), { class: "number" }));
    return row;
  }));
}

// Names

function row(id, seen, otherwise = "online") {
  const made = element("tr", "", { "data-id": id }), cell = element("td", "");
  cell.append(isolated(id));
  made.append(cell, element("td", seen ? ago(seen) : otherwise, { class: "number" }));
  if (seen) made.lastChild.dataset.seen = seen;
  return made;
}

const captioned = (rows) => rows ? rows < MOST ? "Newest first" : "The newest 100" : "Nobody is online";

let shown = null, isCut = false;  // what was polled; whether the live list has been full

async function showNames() {
  if (!token) return;
  const kind = chosen("listed");
  if (!await follow(kind)) {
    const data = await askNamed(query("online", { kind }));
    if (kind !== chosen("listed") || stream?.isOpen) return;  // the list is of another read by now
    if (data !== shown) {
      at("online").replaceChildren(...data.online.map((each) => row(each.id, each.last_seen)));
      setText(at("since"), "Last seen");
    }
    shown = data;
    cursor = "";
  }
  setText(at("caption"), captioned(at("online").children.length));
  for (const cell of document.querySelectorAll("[data-seen]")) setText(cell, ago(cell.dataset.seen));
}

// Names, live. EventSource cannot send the token in a header, so fetch() reads the stream.

let stream = null;  // the stream that is open, or is being opened
let cursor = "";    // the last event that the list contains
let heldUntil = 0;  // until when no stream is tried

// Open a stream if there is none. Return whether one is open, so that nobody has to poll.
async function follow(kind) {
  if (!live.includes(kind) || Date.now() < heldUntil) return false;
  if (stream && Math.abs(Date.now() - stream.heard) > SILENT) leaveStream();
  if (!stream) {
    const started = { heard: Date.now(), isOpen: false, ending: new AbortController() };
    started.opened = new Promise((opened) => {
      const end = () => {
        if (stream === started) stream = null;
        opened(false);
      };
      read(started, kind, opened).then(end, end);
    });
    stream = started;
  }
  const mine = stream, late = new Promise((done) => setTimeout(done, POLL, false));
  const isOpen = await Promise.race([mine.opened, late]);
  if (!isOpen && stream === mine) {  // a proxy holds it back: what comes later is old by then
    leaveStream();
    heldUntil = Date.now() + HELD;
  }
  return isOpen;
}

function leaveStream() {
  stream?.ending.abort();
  stream = null;
}

// Show the events of a kind until the stream ends. Call `opened` once some have come.
async function read(mine, kind, opened) {
  const headers = { Presence: "passive", Authorization: `Bearer ${token}` };
  if (cursor) headers["Last-Event-ID"] = cursor;
  const url = new URL(query("events", { kind }), base);
  const answer = await fetch(url, { cache: "no-store", headers, signal: mine.ending.signal });
  if (!answer.ok) return;  // whoever polls then finds out why
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    mine.heard = Date.now();
    const messages = (text + value).split("\n\n");
    text = messages.pop();
    for (const message of messages) if (stream === mine) receive(message);
    mine.isOpen ||= messages.length > 0;
    if (mine.isOpen) opened(true);
    setText(at("caption"), captioned(at("online").children.length));
  }
}

function receive(message) {
  const fields = Object.fromEntries(message.split("\n").map((line) => line.split(/: ?(.*)/, 2)));
  if ("id" in fields) cursor = fields.id;
  if (fields.event === "list") showList(JSON.parse(fields.data));
  else if (fields.data) showChange(JSON.parse(fields.data));
}

function showList({ online, now }) {
  setLag(now);
  at("online").replaceChildren(...online.map(({ id }) => row(id, null, "earlier")));
  setText(at("since"), "Came");
  isCut = false;
  shown = null;
}

function showChange({ id, online, at: moment }) {
  const list = at("online");
  isCut ||= list.children.length >= MOST;
  [...list.children].find((each) => each.dataset.id === id)?.remove();
  if (online) list.prepend(row(id, moment));
  while (list.children.length > MOST) list.lastChild.remove();
  if (isCut && list.children.length < MOST / 2) {
    leaveStream();
    cursor = "";  // the next stream begins with a list
  }
}

async function unlock(event) {
  event.preventDefault();
  token = at("token").value.replace(/[^!-~]/g, "") || "?";  // without what no token has
  setText(at("refused"), "");
  try {
    await showNames();
    at("token").value = "";
    lock(false);
    at("id").focus();
  } catch (error) {
    setText(at("refused"), error instanceof Refused ? "That is not the token." : reason(error));
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
  const id = at("id").value, kind = chosen("listed");
  try {
    const data = await askNamed(query("last-seen", { id, kind }));
    at("result").replaceChildren(isolated(data.id), ` ${presenceOf(data)}`);
  } catch (error) {
    setText(at("result"), reason(error));
  }
}

function presenceOf({ kind, online, last_seen: seen }) {
  if (online) return seen ? `is online, seen ${ago(seen)}` : "is online";
  return seen ? `is offline, last seen ${ago(seen)}` : `was not seen as ${kind} recently`;
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

// Called when the server refuses the token, because it was changed.
function refused(error) {
  if (!(error instanceof Refused)) throw error;
  token = "";
  cursor = "";
  leaveStream();
  lock(true);
}

let sampled = 0, waiting = 0;

async function refresh() {
  if (document.hidden) {
    leaveStream();
    return;
  }
  try {
    const { counts } = await ask("counts");
    showCounts(counts);
    await showNames().catch(refused);
    if (Math.abs(Date.now() - sampled) > SAMPLED) {  // the clock may be set back
      sampled = Date.now();  // before, because another chart may be asked for meanwhile
      await showChart();
      // Not each change: a screen reader would never be silent on a busy site.
      setText(at("spoken"), `Online: ${kinds.map((kind) => many(counts[kind], kind)).join(", ")}`);
    }
    state("live", "live");
  } catch (error) {
    sampled = 0;
    state("away", reason(error));
  }
  clearTimeout(waiting);
  waiting = setTimeout(refresh, POLL);
}

let drawnWidth = 0;

function resized() {
  if (chartWidth() === drawnWidth) return;
  drawnWidth = chartWidth();
  again();
}

function again() {
  sampled = 0;
  refresh();
}

choices("charted", kinds, again);
choices("listed", listed, () => {
  at("result").replaceChildren();
  leaveStream();
  cursor = "";
  refresh();
});
at("unlock").addEventListener("submit", unlock);
at("search").addEventListener("submit", find);
at(document.querySelector("[data-names=on]") ? "unlock" : "off").hidden = false;
document.addEventListener("visibilitychange", refresh);
at("table").addEventListener("toggle", again);
new ResizeObserver(resized).observe(at("chart"));  // also asks for the first time
