"""Requests that are no visit, and those that keep nobody online.

Nobody looks at a page that a browser fetches ahead, asks about before it really asks (CORS), or
polls by itself; nor does a health check.
"""

import re
from collections.abc import Callable

from ..identity import View

# Sec-Purpose is of Fetch 2.2.5; older browsers say Purpose or X-Moz.
_AHEAD = re.compile("prefetch|prerender|preview", re.IGNORECASE)


class Unseen:
    """Tells from an arriving request that it shows nobody to be there."""

    def __init__(self, *paths: str) -> None:
        """`paths` are those of no visit, with a slash behind or not; `*` in them is anything."""
        exact = [path for path in paths if "*" not in path]
        self._paths = frozenset((*exact, *(f"{path}/" for path in exact)))
        self._matches = _matcher([path for path in paths if "*" in path])

    def __call__(self, view: View) -> bool:
        """Whether it is no visit."""
        path = view.path
        return bool(
            path in self._paths
            or (self._matches and self._matches(path))
            or (view.has_purpose and _has_no_visitor(view))
            or (view.method == "OPTIONS" and _is_preflight(view))
        )


def _has_no_visitor(view: View) -> bool:
    if (view.header("presence") or "").lower() == "passive":
        return True
    purpose = view.header("sec-purpose") or view.header("purpose") or view.header("x-moz") or ""
    return _AHEAD.search(purpose) is not None


def _is_preflight(view: View) -> bool:
    """Fetch 3.2.2: the browser asks before it really asks."""
    return bool(view.header("origin") and view.header("access-control-request-method"))


def _matcher(globs: list[str]) -> Callable[[str], object] | None:
    patterns = map(_pattern, globs)
    return re.compile("|".join(patterns), re.DOTALL).fullmatch if globs else None


def _pattern(glob: str) -> str:
    """What lies between two stars is looked for once, from the left: a path costs no more."""
    first, *between = map(re.escape, glob.split("*"))
    last = [".*" + between.pop()] if between else []
    return first + "".join(f"(?>.*?{part})" for part in between) + "".join(last)
