"""The app for Django: its template tags, and what a site imports with it."""

import html
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest
from django.core.handlers.wsgi import WSGIRequest
from django.template import Context, Engine, RequestContext, TemplateSyntaxError

from presence_middleware import QueryError, Settings, wsgi
from tests.support.asking import plain_environ
from tests.support.template_sites import Account, configure_django

LIBRARIES = {"presence": "presence_middleware.django.templatetags.presence"}
LOAD = "{% load presence %}"
Render = Callable[..., str]


@pytest.fixture
def render(prefix: str) -> Iterator[Render]:
    """Renders a template of a site in which the users 7 and bob and guest g are online."""
    configure_django()
    engine = Engine(libraries=LIBRARIES)
    environ = plain_environ()
    settings = Settings.from_env({}, redis_url=f"memory://{prefix}", enabled=0)
    app = wsgi.PresenceMiddleware(lambda *_: iter(()), settings=settings)
    for user, kind in (("7", "user"), ("bob", "user"), ("g", "guest")):
        app.presence.touch(user, kind)
    body: Any = app(environ, lambda *_: list[bytes]().append)

    def rendered(text: str, **values: object) -> str:
        request = WSGIRequest(environ)
        # A view may also pass its request as a variable.
        context = RequestContext(request, values) if values else Context({"request": request})
        return html.unescape(engine.from_string(LOAD + text).render(context))

    yield rendered
    body.close()


def test_the_admin_of_django_shows_what_each_tag_does(render: Render) -> None:
    """Its page of tags has their docstrings."""
    tags = Engine(libraries=LIBRARIES).template_libraries["presence"].tags
    assert [name for name, tag in tags.items() if not tag.__doc__] == []


SEVEN, EIGHT = Account(7, "ann"), Account(8, "bob")
BOTH: list[Any] = [SEVEN, EIGHT]
AMONG = "{% online_among users as here %}{% for each in here %}{{ each }};{% endfor %}"
STARS = (
    "{% online_among users as here %}"
    "{% for user in users %}{{ user.username }}{% if user in here %}*{% endif %} {% endfor %}"
)
GUESTS = '{% online_among users "guest" window="1m" as here %}{{ here }}'
NAMES = '{% online_among users field="username" as here %}{{ here.0.pk }}{{ here|length }}'
# A template, the `users` in its context, and what it shows.
SHOWN: list[tuple[str, Any, str]] = [
    ("{% online_count %}", None, "2"),
    ('{% online_count "guest" %}', None, "1"),
    ('{% online_count kind="bot" %}', None, "0"),
    ('{% online_count "guest" window="1m" %}', None, "1"),
    ("{% online_count window=60 %}", None, "2"),
    ("{% online_count as n %}{{ n }} online", None, "2 online"),
    ('{% active_count %} {% active_count "7d" as n %}{{ n }}', None, "2 2"),
    ('{% active_count period="1d" kind="user" %}', None, "2"),
    ("{% online_count users as n %}{{ n }}", "bot", "0"),
    ('{% online_count "guest" window="1m" as n %}[{{ n }}]', None, "[1]"),
    (AMONG, (EIGHT, SEVEN), f"{SEVEN};"),
    (AMONG, iter([SEVEN]), f"{SEVEN};"),
    (AMONG, [7, 8], "7;"),
    (AMONG, ["7", "8", " 7 "], "7; 7 ;"),
    (AMONG, [UUID(int=5), Account(None), None, ""], ""),
    (AMONG, [SEVEN, "7", 7], f"{SEVEN};7;7;"),
    (AMONG, [], ""),
    (AMONG, None, ""),
    ("{% online_among undefined as here %}{{ here }}", None, "[]"),
    (STARS, BOTH, "ann* bob "),
    (NAMES, BOTH, "81"),
    (GUESTS, ["g", "7"], "['g']"),
    # Nobody is asked for, or it would be None.
    ('{% online_among users "bot" as here %}{{ here }}', [None, Account(None)], "[]"),
]


@pytest.mark.parametrize(("text", "users", "shown"), SHOWN)
def test_what_a_tag_shows(render: Render, text: str, users: Any, shown: str) -> None:
    assert render(text, users=users) == shown


USAGE = r"write \{% online_count \[KIND\]"
WRONG: list[tuple[str, Any, type[Exception], str]] = [
    *(
        (f"{{% online_count {arguments} %}}", None, TemplateSyntaxError, USAGE)
        for arguments in ('"user" "guest"', 'since="1h"', "window=", 'as "n" n', "a b c")
    ),
    ('{% online_count "nobody" %}', None, QueryError, "nobody"),
    (AMONG, "ann", QueryError, "needs a list of users or ids, not the text 'ann'"),
    ('{% online_among users field="nick" as here %}', [SEVEN], AttributeError, "nick"),
]


@pytest.mark.parametrize(("text", "users", "error", "message"), WRONG)
def test_a_wrong_tag_or_argument_is_reported(
    render: Render, text: str, users: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        render(text, users=users)


def test_what_is_not_stored_is_left_out_and_logged_once(
    render: Render, caplog: pytest.LogCaptureFixture
) -> None:
    text = '({% online_count "guest" window="15m" %}){% online_count "guest" window="15m" as n %}'
    for _ in range(2):
        assert render(text + "{{ n }}") == "()None"
    (logged,) = [each.getMessage() for each in caplog.records]
    assert "kind 'guest' is stored for 10m, not for 15m: see PRESENCE_WINDOW" in logged
    among = '{% online_among ids "guest" window="15m" as here %}{{ here }}'
    assert render(among, ids=["g"]) == "None"
