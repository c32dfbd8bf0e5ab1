// Shows the numbers of a page, every two seconds. The requests are no visits: it is the pulse that
// keeps the reader online.
(() => {
  const POLL = 2000, CHART = 60000;
  const at = (id) => document.getElementById(id);
  const element = (name, text) => Object.assign(document.createElement(name), { textContent: text });

  const people = (count) => `${count} ${count === 1 ? "person" : "people"}`;

  function box(kind, count) {
    const div = document.createElement("div");
    div.append(element("dt", `${kind}${count === 1 ? "" : "s"} online`), element("dd", count));
    return div;
  }

  function row(kind, { id, seconds }, you) {
    const tr = document.createElement("tr");
    if (you && you.kind === kind && you.id === id) tr.className = "you";
    tr.append(...[kind, id, seconds < 2 ? "now" : `${seconds} s ago`].map((t) => element("td", t)));
    tr.lastChild.className = "number";
    return tr;
  }

  function show({ counts, pages, here, online, you, worker }) {
    if (here !== null) at("here").textContent = `${people(here)} on this page`;
    for (const place of document.querySelectorAll("[data-page]")) {
      place.textContent = people(pages[place.dataset.page]);
    }
    at("counts").replaceChildren(...Object.entries(counts).map(([kind, count]) => box(kind, count)));
    at("online").replaceChildren(
      ...Object.entries(online).flatMap(([kind, ids]) => ids.map((each) => row(kind, each, you))));
    at("status").textContent = `you are ${you ? `${you.kind} ${you.id}` : "not recorded"}, answered by worker ${worker}`;
  }

  async function refresh() {
    try {
      const address = `/online.json?page=${encodeURIComponent(location.pathname)}`;
      const state = await (await fetch(address, { headers: { Presence: "passive" } })).json();
      if (state.error) throw new Error(state.error);
      show(state);
    } catch (error) {
      at("here").textContent = "";
      at("status").textContent = `no answer: ${error.message}`;
    }
  }

  // The server draws a chart by the clock of this browser, which asks for few widths.
  function redraw() {
    const chart = at("chart"), address = new URL(chart.dataset.src, location.href);
    if (!chart.clientWidth) return;  // hidden
    address.searchParams.set("width", Math.round(chart.clientWidth / 40) * 40);
    address.searchParams.set("offset", -new Date().getTimezoneOffset());
    address.searchParams.set("at", Date.now());  // another address, so that it is loaded again
    chart.src = address;
  }

  const { path } = document.documentElement.dataset;
  document.querySelector(`nav [href="${path}"]`).setAttribute("aria-current", "page");
  refresh();
  setInterval(refresh, POLL);
  redraw();
  setInterval(redraw, CHART);
  addEventListener("resize", redraw);
})();
