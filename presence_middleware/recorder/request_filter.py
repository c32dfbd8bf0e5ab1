"""Decide what a request is. No I/O.

Prefetches, CORS preflights, passive requests and health checks are not visits, because no user is
looking at them. Nor is what a page of another site embeds or fetches.
"""

import re
from collections.abc import Container

from ..request import Request
from ..rooms import Signal
from ..settings import Settings
from .setup_hints import SetupHints
from .verdict import Purpose

# Sec-Purpose is defined in Fetch 2.2.5. Older browsers send Purpose or X-Moz.
_AHEAD = re.compile("prefetch|prerender|preview", re.IGNORECASE)
EXCLUDED = "its path is in PRESENCE_EXCLUDE"


class RequestFilter:
    """Distinguishes visits from other requests by the settings of a site."""

    def __init__(self, settings: Settings, hints: SetupHints) -> None:
        self._excluded = matching_paths(settings.exclude)
        self._logout = matching_paths(settings.logout)
        self._hints = hints
        special = (*settings.exclude, *settings.logout)
        # Under WSGI, a path that is not ASCII has another form until it is decoded.
        self.special_paths = matching_paths(special) if "".join(special).isascii() else None
        """Paths that are not visits or that log out; None if no request is plainly a page."""

    def purpose_of(self, request: Request, signal: Signal | None = None) -> Purpose:
        """Return what a request is.

        `signal` is what a page said with the request; then `PRESENCE_EXCLUDE` and `PRESENCE_LOGOUT`
        do not matter. Never raises: a request that cannot be read is not a visit.
        """
        try:
            return self.ruling(request, signal)[0]
        except Exception as error:  # a malformed environ or scope
            self._hints.warn("unreadable", f"({type(error).__name__}) and is not recorded")
            return Purpose.NO_VISIT

    def ruling(self, request: Request, signal: Signal | None = None) -> tuple[Purpose, str]:
        """Return what a request is, and if it is no visit, why. Raises if it cannot be read."""
        if why := _why_no_visit(request):
            return Purpose.NO_VISIT, why
        path = request.path
        if signal is not None:
            if not signal.is_same_origin:
                return Purpose.NO_VISIT, "a page of another site sent it"
            return Purpose.GOODBYE if signal.is_goodbye else Purpose.PULSE, ""
        is_excluded = path in self._excluded
        is_cross_site = request.header("sec-fetch-site") == "cross-site"
        may_log_out = not is_cross_site and request.get("type") != "websocket"
        if may_log_out and path in self._logout:
            return Purpose.EXCLUDED_LOGOUT if is_excluded else Purpose.LOGOUT, ""
        return (Purpose.NO_VISIT, EXCLUDED) if is_excluded else (Purpose.PAGE, "")


def _why_no_visit(request: Request) -> str:
    """Return why no user looks at the response to a request; empty if a user may."""
    if (request.header("presence") or "").lower() == "passive":
        return "it has the header Presence: passive"
    ahead = map(request.header, ("sec-purpose", "purpose", "x-moz"))
    if _AHEAD.search(next(filter(None, ahead), "")):
        return "a prefetch"
    is_cors = request.header("origin") and request.header("access-control-request-method")
    if request.method == "OPTIONS" and is_cors:  # Fetch 3.2.2
        return "a CORS preflight"
    if request.header("sec-fetch-site") == "cross-site":
        # A browser may open a page in a tab, but not in a frame (Fetch Metadata 2).
        is_navigation = request.header("sec-fetch-mode") == "navigate"
        if not (is_navigation and request.header("sec-fetch-dest") == "document"):
            return "a page of another site embeds or fetches it"
    return ""


def matching_paths(paths: tuple[str, ...]) -> Container[str]:
    """Return all paths that `paths` stand for: with a slash at the end, and any text for a `*`.

    A path that begins with `!` takes out what those before it stand for.
    """
    if any("*" in path or path.startswith("!") for path in paths):
        return PathPatterns(paths)
    return frozenset((*paths, *(f"{path}/" for path in paths)))


class PathPatterns(Container[str]):
    """All paths that match patterns."""

    def __init__(self, paths: tuple[str, ...]) -> None:
        """Contain the paths whose last match in `paths` has no `!`."""
        self._match = re.compile("|".join(map(_pattern, reversed(paths))), re.DOTALL).fullmatch

    def __contains__(self, path: object) -> bool:
        match = self._match(str(path))
        return match is not None and match.lastindex is None


def _pattern(glob: str) -> str:
    """Return a pattern for a path, which is a group if the path begins with `!`.

    It cannot backtrack, so long paths stay cheap.
    """
    first, *between = map(re.escape, glob.removeprefix("!").split("*"))
    last = ".*" + between.pop() if between else "/?"
    pattern = first + "".join(f"(?>.*?{part})" for part in between) + last
    return f"({pattern})" if glob.startswith("!") else pattern
