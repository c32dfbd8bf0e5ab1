"""The pulse: pulse.js, which pages load, and what the middleware answers to its requests.

It is off unless `PRESENCE_PULSE_PATH` is set.
"""

from importlib.resources import files
from string import Template

from .board.messages import Headers, Response, problem, text
from .board.messages import Request as ReceivedRequest
from .request import Request
from .settings import Settings
from .signals import Signal, is_same_origin, read_signal

CACHED = "public, max-age=3600"
EMPTY: Headers = (("Cache-Control", "no-store"),)
"""The headers of the 204 that answers a pulse."""


class Pulse:
    """The pulse of a site."""

    def __init__(self, settings: Settings) -> None:
        """Serve the pulse at `settings.pulse_path`."""
        self.path = settings.pulse_path
        """The path of the pulse, below the mount point of the app."""
        self._script_path = f"{self.path}.js"
        self.needs_app = any(rule.checked or rule.type.set_by_app for rule in settings.identity)
        """True if only layers of the app may know whose pulse it is, so that it must run."""
        self._script = text("javascript", _script(settings), CACHED)

    def concerns(self, path: str, method: str | None) -> bool:
        """Return False for most requests: `receive` would return None for them."""
        return method == "POST" or path.startswith(self.path)

    def receive(self, path: str, request: Request) -> Response | Signal | None:
        """Return the signal in a request, or None. Never raises.

        Return the response instead if the request is no visit: for the script, and at the path of
        the pulse for other methods than POST and for other sites. `path` is the path below the
        mount point of the app.
        """
        if path not in (self.path, self._script_path):
            return read_signal(request, is_own=False)
        return self._response(path, request) or read_signal(request, is_own=True)

    def _response(self, path: str, request: Request) -> Response | None:
        is_script = path == self._script_path
        allowed = "GET, HEAD" if is_script else "POST"
        if request.method not in allowed.split(", "):
            response = problem(405, f"only {allowed} is allowed", ("Allow", allowed))
        elif is_script:
            response = self._script
        elif not _is_same_origin(request):
            response = problem(403, "only a page of this site may send this")
        else:
            return None
        return response.to(ReceivedRequest(request.method, path, "", request.header))


def pulse_for(settings: Settings) -> Pulse | None:
    """Return the pulse of a site, or None if it is off."""
    return Pulse(settings) if settings.pulse_path else None


def _is_same_origin(request: Request) -> bool:
    try:
        return is_same_origin(request)
    except Exception:  # a malformed environ or scope
        return False


def _script(settings: Settings) -> bytes:
    """Return pulse.js with the times of the site, in milliseconds."""
    source = files(__package__).joinpath("pulse.js").read_text("utf-8")
    times = {"every": settings.refresh_seconds, "window": settings.window}
    values = {name: str(int(1000 * seconds)) for name, seconds in times.items()}
    return Template(source).substitute(values).encode()
