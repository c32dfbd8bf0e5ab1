// <span data-presence></span> becomes "128 online"; data-presence="guest" counts that kind.
// With data-room it counts who is in the room of this page, with data-room="/t/42" in another.
(() => {
  const { src } = document.currentScript;
  const counts = new URL("counts", src);
  // fetch() refuses URLs with credentials, which a page may have been opened with.
  counts.username = counts.password = "";
  const EVERY = 60000;
  const RECORDED = 3000; // after which the reader of this page is counted, too

  // What stands before the app's own path of this script also stands before that of each page.
  const own = "$own", { pathname: loaded } = new URL(src);
  const mount = loaded.endsWith(own) ? loaded.slice(0, -own.length) : "unknown";

  // Returns undefined for the room of a page that is not the app's.
  function addressFor(room) {
    if (room === undefined) return counts.href;
    let { pathname } = new URL(room, location.href);
    if (!(pathname + "/").startsWith(mount + "/")) return undefined;
    pathname = pathname.slice(mount.length);
    const address = new URL(counts);
    // The path is encoded, but for what has a meaning in a query.
    address.search = "room=" + pathname.replace(/[&+]/g, encodeURIComponent);
    return address.href;
  }

  async function show(address, places) {
    const answer = await fetch(address, { headers: { Presence: "passive" } });
    const data = (await answer.json()).counts;
    for (const place of places) {
      const count = data[place.dataset.presence || "$first"];
      if (count !== undefined) place.textContent = count.toLocaleString() + " online";
      else if (place.dataset.room !== undefined) place.textContent = "";
    }
  }

  // Timers call it without an argument.
  function refresh(shown) {
    if (document.hidden) return;
    if (shown) setTimeout(refresh, RECORDED);
    const places = new Map();
    for (const place of document.querySelectorAll("[data-presence]")) {
      const address = addressFor(place.dataset.room);
      places.set(address, [...(places.get(address) || []), place]);
    }
    for (const [address, some] of places) if (address) show(address, some).catch(() => {});
  }

  document.addEventListener("visibilitychange", refresh);
  setInterval(refresh, EVERY + 5000 * Math.random());
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", refresh);
  else refresh(true);
})();
