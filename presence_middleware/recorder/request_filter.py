"""Decide which requests count as visits, and find the address of the client. No I/O.

Prefetches, CORS preflights, passive requests and health checks are not visits, because no user is
looking at them.
"""

import re
from collections.abc import Callable

from ..identity import locator
from ..request import Request
from ..settings import Settings
from .setup_hints import SetupHints
from .visit import Visit

# Sec-Purpose is defined in Fetch 2.2.5. Older browsers send Purpose or X-Moz.
_AHEAD = re.compile("prefetch|prerender|preview", re.IGNORECASE)


class RequestFilter:
    """Distinguishes visits from other requests by the settings of a site."""

    def __init__(self, settings: Settings, hints: SetupHints) -> None:
        paths = settings.exclude
        self._is_excluded = path_matcher(paths)
        self._locate = locator(settings.trusted_proxies, settings.ip_prefix)
        self._enabled = settings.enabled
        self._hints = hints
        self._is_logout = path_matcher(settings.logout)
        globs = "".join((*paths, *settings.logout))
        self.looks_at_all = not self._enabled or self._locate is not None or "*" in globs
        """True if every request must be examined, also a plain one."""
        self.paths = exact_paths(paths) | exact_paths(settings.logout)
        """Paths that are not visits or that log out. Requests to other paths may be plain."""

    def admit(self, request: Visit, now: float, *, is_signal: bool = False) -> bool:
        """Return whether a request is a visit, and set the address of its client.

        `now` is the time by the recorder's clock, in seconds. With `is_signal`, `PRESENCE_EXCLUDE`
        does not matter. Never raises: a request that cannot be read is not a visit.
        """
        try:
            if self._locate is not None:
                request.address = self._locate(request)
            if not self._enabled or (not is_signal and self._is_excluded(request.path)):
                return False
            if _has_no_visitor(request) or _is_preflight(request):
                return False
            if now >= self._hints.look_at:
                self._hints.look(request, now)
        except Exception as error:  # a malformed environ or scope
            self._hints.unreadable(error)
            return False
        return True

    def is_logout(self, request: Request) -> bool:
        """Return whether a request logs its user out, provided that its response is not an error.

        Requests for a path of `PRESENCE_LOGOUT` do, except prefetches and the like. Never raises.
        """
        try:
            return (
                self._enabled
                and self._is_logout(request.path)
                and request.get("type") != "websocket"
                and not (_has_no_visitor(request) or _is_preflight(request))
            )
        except Exception:  # a malformed environ or scope, which `admit` reports
            return False


def _has_no_visitor(request: Request) -> bool:
    if (request.header("presence") or "").lower() == "passive":
        return True
    purpose = (
        request.header("sec-purpose") or request.header("purpose") or request.header("x-moz") or ""
    )
    return _AHEAD.search(purpose) is not None


def _is_preflight(request: Request) -> bool:
    """Return whether a request is a CORS preflight (Fetch 3.2.2)."""
    if request.method != "OPTIONS":
        return False
    return bool(request.header("origin") and request.header("access-control-request-method"))


def exact_paths(paths: tuple[str, ...]) -> frozenset[str]:
    """Return the paths without a `*`, each with and without a slash at its end."""
    plain = [path for path in paths if "*" not in path]
    return frozenset((*plain, *(f"{path}/" for path in plain)))


def path_matcher(paths: tuple[str, ...]) -> Callable[[str], bool]:
    """Return a function that reports whether a path is in `paths`; `*` matches any text."""
    exact = exact_paths(paths)
    patterns = [_pattern(path) for path in paths if "*" in path]
    if not patterns:
        return exact.__contains__
    match = re.compile("|".join(patterns), re.DOTALL).fullmatch
    return lambda path: path in exact or match(path) is not None


def _pattern(glob: str) -> str:
    """Return a pattern for a path with `*`. It cannot backtrack, so long paths stay cheap."""
    first, *between = map(re.escape, glob.split("*"))
    last = [".*" + between.pop()] if between else []
    return first + "".join(f"(?>.*?{part})" for part in between) + "".join(last)
