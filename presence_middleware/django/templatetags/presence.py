"""The template tags of `{% load presence %}`. They need no context processor."""

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from django.template import Library, Node, TemplateSyntaxError
from django.template.base import Parser, Token, render_value_in_context, token_kwargs

from ...errors import QueryError
from ...identity.ids import normalize_id
from ...lookup import TemplatePresence, template_presence

register = Library()

IDS = (str, int, UUID)
"""The types that are ids themselves. Other objects have their id as an attribute."""


class CountNode(Node):  # type: ignore[misc]  # Django has no types
    """The tags `online_count` and `active_count`."""

    def __init__(self, question: str, options: dict[str, Any], target: str | None) -> None:
        """Create a tag that puts a number into the variable `target`, or shows it."""
        self.question, self.options, self.target = question, options, target

    def render(self, context: Any) -> str:
        """Return the number as text, or put it into the context and return no text."""
        options = {name: value.resolve(context) for name, value in self.options.items()}
        number = getattr(_reader(context), self.question)(**options)
        if self.target is not None:
            context[self.target] = number
            return ""
        return "" if number is None else str(render_value_in_context(number, context))


@register.tag  # type: ignore[untyped-decorator]
def online_count(parser: Parser, token: Token) -> CountNode:
    """Show the number online: `{% online_count %}`, `{% online_count "guest" window="15m" as n %}`.

    The kind is by default the first of `PRESENCE_IDENTITY`, and the window `PRESENCE_WINDOW`. In an
    outage it shows nothing, and the variable after `as` is None. Not a `simple_tag`, because that
    shows None as a word.
    """
    return _count_node(parser, token, "count", "kind", "window")


@register.tag  # type: ignore[untyped-decorator]
def active_count(parser: Parser, token: Token) -> CountNode:
    """Show how many were seen in a period: `{% active_count "7d" %}`, by default in a day.

    The kind is by default the first of `PRESENCE_IDENTITY`. In an outage it shows nothing, and the
    variable after `as` is None.
    """
    return _count_node(parser, token, "active", "period", "kind")


def _count_node(parser: Parser, token: Token, question: str, first: str, other: str) -> CountNode:
    """Return the node of a tag with two options. The `first` needs no name."""
    tag, *bits = token.split_contents()
    target = None
    if len(bits) > 1 and bits[-2] == "as":
        *bits, _, target = bits
    options = {}
    if bits and "=" not in bits[0]:
        options[first] = parser.compile_filter(bits.pop(0))
    options |= token_kwargs(bits, parser)
    if bits or not options.keys() <= {first, other}:
        usage = f"{{% {tag} [{first.upper()}] [{other}={other.upper()}] [as NAME] %}}"
        raise TemplateSyntaxError(f"{{% {token.contents} %}}: write {usage}")
    return CountNode(question, options, target)


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
