// Tells this site that somebody reads the page, and when it is closed.
(() => {
  const { src, dataset } = document.currentScript;
  const url = new URL(dataset.to || src.replace(/\.js([?#].*)?$$/, ""), document.baseURI);
  url.username = url.password = url.hash = "";
  const to = url.href + (url.search ? "&" : "?") + "presence=";
  // What stands before the app's own path of this script also stands before that of each page.
  const own = "$own", { pathname } = new URL(src);
  const mount = pathname.endsWith(own) ? pathname.slice(0, -own.length) : "unknown";
  let used = Date.now(), here = false;

  function pulse() {
    if (document.hidden || Date.now() - used > $window) return;
    here = true;
    const path = location.pathname, isBelow = (path + "/").startsWith(mount + "/");
    const page = isBelow && !("stay" in dataset) ? ":" + path.slice(mount.length) : "";
    fetch(to + "here" + page, { method: "POST", keepalive: true }).catch(() => {});
  }
  function use() {
    const before = used;
    used = Date.now();
    if (used - before > $window) pulse();
  }
  function show() {
    used = Date.now();
    pulse();
  }
  for (const input of ["keydown", "pointerdown", "pointermove", "scroll"])
    addEventListener(input, use, { capture: true, passive: true });
  addEventListener("visibilitychange", show, true);
  addEventListener("pageshow", () => here || show());
  addEventListener("pagehide", () => {
    if (here) navigator.sendBeacon(to + "bye");
    here = false;
  });
  setInterval(pulse, $every);
  pulse();
})();
