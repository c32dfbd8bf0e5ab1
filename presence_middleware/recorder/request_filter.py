"""Which arriving requests count as visits, and where they come from. No I/O.

Nobody looks at a page that a browser fetches ahead, asks about before it really asks (CORS), or
polls by itself; nor does a health check.
"""

import re
from collections.abc import Callable

from ..identity import locator
from ..request import Request
from ..settings import Settings
from .setup_hints import SetupHints

# Sec-Purpose is of Fetch 2.2.5; older browsers say Purpose or X-Moz.
_AHEAD = re.compile("prefetch|prerender|preview", re.IGNORECASE)


class RequestFilter:
    """Tells visits from other requests, by the settings of a site."""

    def __init__(self, settings: Settings, hints: SetupHints) -> None:
        paths = settings.exclude
        self._is_excluded = path_matcher(paths)
        self._locate = locator(settings.trusted_proxies, settings.ip_prefix)
        self._enabled = settings.enabled
        self._hints = hints
        self._is_logout = path_matcher(settings.logout)
        globs = "".join((*paths, *settings.logout))
        self.looks_at_all = not self._enabled or self._locate is not None or "*" in globs
        """Whether a request must be looked at however plain it is."""
        self.paths = exact_paths(paths) | exact_paths(settings.logout)
        """Paths that are no visit, or that log out. A request to another one may be plain."""

    def admit(self, request: Request, now: float) -> bool:
        """Return whether a request is a visit; find the address of its client.

        `now` is the time by the recorder's clock. Never raises: what cannot be read is no visit.
        """
        try:
            if self._locate is not None:
                request.address = self._locate(request)
            if not self._enabled or self._is_excluded(request.path):
                return False
            if _has_no_visitor(request) or _is_preflight(request):
                return False
            if now >= self._hints.look_at:
                self._hints.look(request, now)
        except Exception as error:  # an environ or scope that is none
            self._hints.unreadable(error)
            return False
        return True

    def is_logout(self, request: Request) -> bool:
        """Return whether a request logs somebody out, if it is answered without an error.

        That of a path of `PRESENCE_LOGOUT` does, unless a browser makes it by itself. Never raises.
        """
        try:
            return (
                self._enabled
                and self._is_logout(request.path)
                and request.get("type") != "websocket"
                and not (_has_no_visitor(request) or _is_preflight(request))
            )
        except Exception:  # an environ or scope that is none: `admit` reports it
            return False


def _has_no_visitor(request: Request) -> bool:
    if (request.header("presence") or "").lower() == "passive":
        return True
    purpose = (
        request.header("sec-purpose") or request.header("purpose") or request.header("x-moz") or ""
    )
    return _AHEAD.search(purpose) is not None


def _is_preflight(request: Request) -> bool:
    """Return whether the browser only asks whether it may ask (Fetch 3.2.2)."""
    if request.method != "OPTIONS":
        return False
    return bool(request.header("origin") and request.header("access-control-request-method"))


def exact_paths(paths: tuple[str, ...]) -> frozenset[str]:
    """Return those of the paths that have no `*` in them, each with a slash behind and without."""
    plain = [path for path in paths if "*" not in path]
    return frozenset((*plain, *(f"{path}/" for path in plain)))


def path_matcher(paths: tuple[str, ...]) -> Callable[[str], bool]:
    """Return what tells whether a path is one of these; a `*` in them stands for anything."""
    exact = exact_paths(paths)
    patterns = [_pattern(path) for path in paths if "*" in path]
    if not patterns:
        return exact.__contains__
    match = re.compile("|".join(patterns), re.DOTALL).fullmatch
    return lambda path: path in exact or match(path) is not None


def _pattern(glob: str) -> str:
    """What lies between two stars is looked for once, from the left: a path costs no more."""
    first, *between = map(re.escape, glob.split("*"))
    last = [".*" + between.pop()] if between else []
    return first + "".join(f"(?>.*?{part})" for part in between) + "".join(last)
