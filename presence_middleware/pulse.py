"""The pulse: pulse.js, which pages load, and what the middleware answers to its requests.

It is off unless `PRESENCE_PULSE_PATH` is set.
"""

from importlib.resources import files
from string import Template
from typing import Any

from .board import Headers, Response, content, problem
from .request import request_of
from .rooms import Signal, read_signal
from .settings import Settings

CACHED = "public, max-age=3600"
EMPTY: Headers = (("Cache-Control", "no-store"),)
"""The headers of the 204 that answers a pulse."""


class Pulse:
    """The pulse of a site."""

    def __init__(self, settings: Settings) -> None:
        """Serve the pulse at `settings.pulse_path`."""
        self._path = settings.pulse_path
        self._script_path = f"{self._path}.js"
        source = files(__package__).joinpath("pulse.js").read_text("utf-8")
        times = {"every": settings.refresh_seconds, "window": settings.window}
        milliseconds = {name: str(int(1000 * seconds)) for name, seconds in times.items()}
        script = Template(source).substitute(milliseconds, own=self._script_path)
        self._script = content("text/javascript; charset=utf-8", script.encode(), CACHED)

    def receive(self, path: str, state: Any) -> Response | Signal | None:
        """Return the signal in a request, or None. Never raises.

        `path` is the path below the mount point, and `state` the environ or scope. Return a
        response instead if the request is no visit: for the script, and at the path of the
        pulse for other methods than POST and for other sites.
        """
        is_own = path in (self._path, self._script_path)
        method = state.get("REQUEST_METHOD") or state.get("method")
        if not is_own and method != "POST":
            return None
        request = request_of(state)
        allowed = "GET, HEAD" if path == self._script_path else "POST"
        if request.method not in allowed.split(", "):
            response = problem(405, f"only {allowed} is allowed", ("Allow", allowed))
        elif path == self._script_path:
            response = self._script
        else:
            signal = read_signal(request, is_own=is_own)
            if not is_own or (signal is not None and signal.is_same_origin):
                return signal
            response = problem(403, "only a page of this site may send this")
        return response.to(request)
