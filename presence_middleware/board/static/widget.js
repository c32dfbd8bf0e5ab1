// <span data-presence></span> becomes "128 online"; data-presence="guest" counts that kind.
(() => {
  const counts = new URL("counts", document.currentScript.src);
  // fetch() refuses URLs with credentials, which a page may have been opened with.
  counts.username = counts.password = "";
  const EVERY = 60000;

  async function refresh() {
    if (document.hidden) return;
    const answer = await fetch(counts, { headers: { Presence: "passive" } });
    if (!answer.ok) return;
    const data = (await answer.json()).counts;
    for (const place of document.querySelectorAll("[data-presence]")) {
      const count = data[place.dataset.presence || Object.keys(data)[0]];
      if (count !== undefined) place.textContent = `${count.toLocaleString()} online`;
    }
  }

  const quietly = () => refresh().catch(() => {});
  document.addEventListener("visibilitychange", quietly);
  setInterval(quietly, EVERY + 5000 * Math.random());
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", quietly);
  else quietly();
})();
