// <span data-presence></span> becomes "128 online"; data-presence="guest" counts that kind.
// With data-room it counts who is in the room of this page, with data-room="/t/42" in another.
(() => {
  const counts = new URL("counts", document.currentScript.src);
  // fetch() refuses URLs with credentials, which a page may have been opened with.
  counts.username = counts.password = "";
  const EVERY = 60000;
  const RECORDED = 3000; // after which the reader of this page is counted, too

  function addressFor(room) {
    if (room === undefined) return counts.href;
    const { pathname } = new URL(room, location.href);
    const address = new URL(counts);
    try {
      address.searchParams.set("room", decodeURIComponent(pathname));
    } catch {
      address.searchParams.set("room", pathname);
    }
    return address.href;
  }

  async function show(address, places) {
    const answer = await fetch(address, { headers: { Presence: "passive" } });
    if (!answer.ok) return;
    const data = (await answer.json()).counts;
    for (const place of places) {
      const count = data[place.dataset.presence || Object.keys(data)[0]];
      if (count !== undefined) place.textContent = `${count.toLocaleString()} online`;
      else if (place.dataset.room !== undefined) place.textContent = "";
    }
  }

  function refresh() {
    if (document.hidden) return;
    const places = new Map();
    for (const place of document.querySelectorAll("[data-presence]")) {
      const address = addressFor(place.dataset.room);
      places.set(address, [...(places.get(address) || []), place]);
    }
    for (const [address, some] of places) show(address, some).catch(() => {});
  }

  document.addEventListener("visibilitychange", refresh);
  setInterval(refresh, EVERY + 5000 * Math.random());
  setTimeout(refresh, RECORDED);
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", refresh);
  else refresh();
})();
