"""The template tags of `{% load presence %}`. They need no context processor."""

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any
from uuid import UUID

from django.template import Library, Node
from django.template.base import render_value_in_context

from ...errors import QueryError
from ...identity.ids import normalize_id
from ...lookup import TemplatePresence, template_presence

register = Library()

IDS = (str, int, UUID)
"""The types that are ids themselves. Other objects have their id as an attribute."""


class CountNode(Node):  # type: ignore[misc]  # Django has no types
    """A simple tag that shows a number, and nothing in place of None."""

    def __init__(self, tag: Any) -> None:
        """Wrap the node of a `simple_tag`."""
        self.tag = tag

    def render(self, context: Any) -> str:
        """Return the number as text, or put it into the context and return no text."""
        if self.tag.target_var is not None:
            return str(self.tag.render(context))
        arguments, options = self.tag.get_resolved_arguments(context)
        number = self.tag.func(*arguments, **options)
        return "" if number is None else str(render_value_in_context(number, context))


def _count_tag(ask: Callable[..., int | None]) -> Callable[..., int | None]:
    """Register a `simple_tag` whose node is a `CountNode`."""
    register.simple_tag(ask, takes_context=True)
    parse = register.tags[ask.__name__]

    @wraps(ask)  # Django's admin shows the docstrings of tags
    def parse_count(parser: Any, token: Any) -> CountNode:
        return CountNode(parse(parser, token))

    register.tag(parse_count)
    return ask


@_count_tag
def online_count(context: Any, kind: str | None = None, *, window: Any = None) -> int | None:
    """Show the number online: `{% online_count %}`, `{% online_count "guest" window="15m" as n %}`.

    The kind is by default the first of `PRESENCE_IDENTITY`, and the window `PRESENCE_WINDOW`. In an
    outage it shows nothing, and the variable after `as` is None.
    """
    return _reader(context).count(kind, window=window)


@_count_tag
def active_count(context: Any, period: Any = "1d", *, kind: str | None = None) -> int | None:
    """Show how many were seen in a period: `{% active_count "7d" %}`, by default in a day.

    The kind is by default the first of `PRESENCE_IDENTITY`. In an outage it shows nothing, and the
    variable after `as` is None.
    """
    return _reader(context).active(period, kind)


@register.simple_tag(takes_context=True)  # type: ignore[untyped-decorator]
def online_among(
    context: Any,
    users: Iterable[Any] | None,
    kind: str | None = None,
    *,
    window: Any = None,
    field: str = "pk",
) -> list[Any] | None:
    """Return those of `users` who are online, in a single read: `{% online_among users as here %}`.

    `users` are objects of the site, ids, or both; None stands for no users. The id of an object is
    its attribute `field`: write `field="username"` if `PRESENCE_IDENTITY` has `auth:username`. An
    object whose id is None is left out. `kind` is by default the first of `PRESENCE_IDENTITY`, and
    `window` is `PRESENCE_WINDOW`; it may also be seconds or text such as `"15m"`.

    The list has the objects that were given, in their order, so that `{% if user in here %}` works.
    It is None in an outage. Raises `QueryError` for a single text, and `AttributeError` for an
    object without the attribute.
    """
    if isinstance(users, str) and users:
        raise QueryError(f"online_among needs a list of users or ids, not the text {users!r}")
    ids = []
    for user in users or ():
        id = user if user is None or isinstance(user, IDS) else getattr(user, field)
        ids.append((user, "" if id is None else normalize_id(str(id))))
    asked = [id for _, id in ids if id]
    if not asked:
        return []
    online = _reader(context).online_among(asked, kind, window=window)
    if online is None:
        return None
    here = set(online)
    return [user for user, id in ids if id in here]


def _reader(context: Any) -> TemplatePresence:
    """Return the reader of the request that a template is rendered for."""
    return template_presence(getattr(context, "request", None) or context.get("request"))
