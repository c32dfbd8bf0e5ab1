"""The app for Django: its template tags, and what a site imports with it."""

import html
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID
from wsgiref.util import setup_testing_defaults

import pytest
from django.core.handlers.wsgi import WSGIRequest
from django.template import Context, Engine, RequestContext, TemplateSyntaxError

from presence_middleware import Presence, QueryError, Settings, wsgi
from tests.support.servers import environment
from tests.support.template_sites import Account, configure_django

LIBRARIES = {"presence": "presence_middleware.django.templatetags.presence"}
LOAD = "{% load presence %}"
Render = Callable[..., str]


@pytest.fixture
def presence(prefix: str) -> Presence:
    """A reader of the site, in which user 7 and guest g are online."""
    settings = Settings.from_env({}, redis_url=f"memory://{prefix}", enabled=0)
    presence = Presence(settings)
    presence.touch("7")
    presence.touch("g", "guest")
    return presence


@pytest.fixture
def render(presence: Presence) -> Iterator[Render]:
    """Renders a template for a request that is wrapped."""
    configure_django()
    engine = Engine(libraries=LIBRARIES)
    environ: dict[str, Any] = {}
    setup_testing_defaults(environ)
    app = wsgi.PresenceMiddleware(lambda *_: iter(()), settings=presence.backend.settings)
    body = app(environ, lambda *_: list[bytes]().append)

    def rendered(text: str, **values: object) -> str:
        context = RequestContext(WSGIRequest(environ), values)
        return html.unescape(engine.from_string(LOAD + text).render(context))

    yield rendered
    body.close()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("{% online_count %}", "1"),
        ('{% online_count "guest" %}', "1"),
        ('{% online_count kind="bot" %}', "0"),
        ('{% online_count "guest" window="1m" %}', "1"),
        ("{% online_count window=60 %}", "1"),
        ("{% online_count as n %}{{ n }} online", "1 online"),
        ("{% online_count kind as n %}{{ n }}", "0"),
        ('{% online_count "guest" window="1m" as n %}[{{ n }}]', "[1]"),
    ],
)
def test_the_number_online(render: Render, text: str, shown: str) -> None:
    assert render(text, kind="bot") == shown


@pytest.mark.parametrize(
    "arguments",
    ['"user" "guest"', 'since="1h"', '"user" kind="user" limit=1', "window=", 'as "n" n', "a b c"],
)
def test_a_wrong_tag_is_refused_with_its_usage(render: Render, arguments: str) -> None:
    with pytest.raises(TemplateSyntaxError, match=r"write \{% online_count \[KIND\]"):
        render(f"{{% online_count {arguments} %}}")


def test_a_wrong_argument_is_refused_while_rendering(render: Render) -> None:
    with pytest.raises(QueryError):
        render('{% online_count "nobody" %}')


def test_what_is_not_stored_is_left_out_and_logged_once(
    render: Render, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("presence_middleware.template._reported", set())
    text = '({% online_count "guest" window="15m" %}){% online_count "guest" window="15m" as n %}'
    for _ in range(2):
        assert render(text + "{{ n }}") == "()None"
    (logged,) = [each.getMessage() for each in caplog.records]
    assert "kind 'guest' is stored for 10m, not for 15m: see PRESENCE_WINDOW" in logged
    among = '{% online_among ids "guest" window="15m" as here %}{{ here }}'
    assert render(among, ids=["g"]) == "None"


ID = UUID(int=5)
SEVEN, EIGHT = Account(7, "ann"), Account(8, "bob")


@pytest.mark.parametrize(
    ("users", "here"),
    [
        ([SEVEN, EIGHT], [SEVEN]),
        ((EIGHT, SEVEN), [SEVEN]),
        (iter([SEVEN]), [SEVEN]),
        ([7, 8], [7]),
        (["7", "8", " 7 "], ["7", " 7 "]),
        ([ID, Account(None), None, ""], []),
        ([SEVEN, "7", 7], [SEVEN, "7", 7]),
        ([], []),
        (None, []),
        ("", []),
    ],
)
def test_the_users_of_a_list_who_are_online(render: Render, users: Any, here: list[Any]) -> None:
    text = "{% online_among users as here %}{% for each in here %}{{ each }};{% endfor %}"
    assert render(text, users=users) == "".join(f"{each};" for each in here)


def test_a_template_asks_whether_a_user_is_among_them(render: Render) -> None:
    text = (
        "{% online_among users as here %}"
        "{% for user in users %}{{ user.username }}{% if user in here %}*{% endif %} {% endfor %}"
    )
    assert render(text, users=[SEVEN, EIGHT]) == "ann* bob "


def test_a_site_that_counts_user_names_names_the_field(render: Render, presence: Presence) -> None:
    presence.touch("bob")
    text = '{% online_among users field="username" as here %}{{ here.0.pk }}{{ here|length }}'
    assert render(text, users=[SEVEN, EIGHT]) == "81"


def test_a_list_of_another_kind_and_window(render: Render) -> None:
    text = '{% online_among ids "guest" window="1m" as here %}{{ here }}'
    assert render(text, ids=["g", "7"]) == "['g']"


def test_one_text_is_no_list_of_users(render: Render) -> None:
    with pytest.raises(QueryError, match="needs a list of users or ids, not the text 'ann'"):
        render("{% online_among users as here %}", users="ann")


def test_an_object_without_the_field_is_reported(render: Render) -> None:
    with pytest.raises(AttributeError, match="nick"):
        render('{% online_among users field="nick" as here %}', users=[SEVEN])


def test_a_request_in_a_plain_context_is_found(render: Render) -> None:
    configure_django()
    engine = Engine(libraries=LIBRARIES)
    template = engine.from_string(LOAD + "({% online_count %})")
    assert template.render(Context({})) == "()"
    environ: dict[str, Any] = {}
    setup_testing_defaults(environ)
    assert template.render(Context({"request": WSGIRequest(environ)})) == "()"


CHECK = """
import django, sys
from django.conf import settings
settings.configure(INSTALLED_APPS=["presence_middleware.django"], SECRET_KEY="x")
django.setup()
from django.apps import apps
print([config.label for config in apps.get_app_configs()])
print("presence_middleware.django.middleware" in sys.modules)
from django.utils.module_loading import import_string
print(import_string("presence_middleware.django.PresenceMiddleware").__name__)
"""


def test_the_app_of_a_site_imports_no_layer_until_middleware_names_one() -> None:
    run = [sys.executable, "-W", "error", "-c", CHECK]
    output = subprocess.check_output(run, env=environment(), text=True, timeout=60)
    assert output.splitlines() == ["['presence_middleware']", "False", "PresenceMiddleware"]
