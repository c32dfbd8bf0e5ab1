"""The visit of a request in a handler: its identity, `identify`, and the recorded id."""

import subprocess
import sys

import pytest
from starlette.authentication import SimpleUser

from presence_middleware import Identity, Presence, QueryError, Settings
from presence_middleware.recorder import Recorder, Visit, recorder_for
from presence_middleware.request import WsgiRequest
from tests.support.asking import Request, State, ask_asgi, ask_wsgi, ids, opened
from tests.support.backends import Server, wait_until
from tests.support.servers import environment

GUEST = "192.0.2.7"


def visit_in(state: State) -> Visit:
    visit = state["presence_middleware.visit"]
    assert isinstance(visit, Visit)
    return visit


@pytest.mark.parametrize(("said", "id"), [("ann", "ann"), (42, "42"), (" ann ", "ann"), (0, "0")])
def test_the_identity_of_an_inner_layer_wins(said: str | int, id: str, settings: Settings) -> None:
    def layer(state: State) -> None:
        visit_in(state).identify(said)

    assert ids(settings, Request(user="bob"), layer) == id
    assert recorder_for(settings).flush()
    assert Presence(settings).counts() == {"user": 1, "guest": 0, "bot": 0}
    assert Presence(settings).is_online(id)


@pytest.mark.parametrize("nothing", [None, "", "  "])
def test_identifying_nobody_withdraws_an_earlier_identity(
    nothing: str | None, settings: Settings
) -> None:
    def layer(state: State) -> None:
        visit_in(state).identify("ann")
        visit_in(state).identify(nothing)

    assert ids(settings, Request(user="bob"), layer) == "bob"


def test_an_identified_kind_must_be_configured(settings: Settings) -> None:
    def layer(state: State) -> None:
        visit_in(state).identify("ann", kind="guest")
        with pytest.raises(QueryError, match=r"unknown kind .robot.: .* user, guest"):
            visit_in(state).identify("ann", kind="robot")

    for ask in (ask_wsgi, ask_asgi):
        assert ask(settings, Request(user="bob"), layer) == Identity("guest", "ann")


@pytest.mark.parametrize(
    ("identity", "kind"),
    [
        ("a=user-agent, b=auth, c=visitor", "b"),
        ("a=user-agent, b=visitor", "a"),
        ("guest=ip:raw, user=session:id", "guest"),
        ("user=identify, invisible=identify, guest=ip:raw", "user"),
    ],
)
def test_the_default_kind_is_that_of_auth_or_else_the_first(
    identity: str, kind: str, prefix: str
) -> None:
    settings = Settings.from_env({}, identity=identity, prefix=prefix, enabled=False)

    def layer(state: State) -> None:
        visit_in(state).identify("ann")

    for ask in (ask_wsgi, ask_asgi):
        assert ask(settings, Request(), layer) == Identity(kind, "ann")


@pytest.mark.parametrize(
    ("session", "id"),
    [({"user": {"id": 42}}, "42"), ({"user": {}, "user_id": "7"}, "7"), ({"user": {}}, GUEST)],
)
def test_the_user_of_a_session_may_be_a_mapping(
    session: dict[str, object], id: str, prefix: str
) -> None:
    identity = "user=auth, guest=ip:raw"
    settings = Settings.from_env({}, identity=identity, prefix=prefix, enabled=False)
    assert ids(settings, Request(session=session)) == id


def test_a_guest_who_logs_in_during_the_request_is_recorded_as_user_alone(
    settings: Settings,
) -> None:
    ask_wsgi(settings, Request(), lambda environ: environ.update(REMOTE_USER="ann"))
    ask_asgi(settings, Request(), lambda scope: scope.update(user=SimpleUser("bob")))
    assert recorder_for(settings).flush()
    presence = Presence(settings)
    assert presence.counts() == {"user": 2, "guest": 0, "bot": 0}
    assert presence.online_among(["ann", "bob"]) == ["ann", "bob"]


def test_a_guest_who_came_before_redis_could_be_reached_is_the_same(own: Server) -> None:
    view = WsgiRequest({"REMOTE_ADDR": "192.0.2.7"})
    settings = Settings.from_env({}, redis_url=own.url, flush_interval="0.05s")
    own.stop()
    early = Recorder(settings)
    visit = opened(early, view)
    visit.end()
    assert not early.flush()
    assert visit.identity is None
    assert early.stats().pending == 1
    own.start()
    other = Recorder(settings)
    late = opened(other, view)
    late.flush()
    wait_until(early.flush)
    assert visit.identity == late.identity is not None
    assert Presence(settings).counts() == {"user": 0, "guest": 1, "bot": 0}
    late.end()
    for recorder in (early, other):
        recorder.close()


def test_a_process_that_ends_right_after_its_first_request_has_recorded_it(
    settings: Settings, valkey: Server, prefix: str
) -> None:
    program = """
from presence_middleware.wsgi import PresenceMiddleware
PresenceMiddleware(lambda *_: [])({"REMOTE_USER": "ann"}, print)
"""
    variables = {"PRESENCE_REDIS_URL": valkey.url, "PRESENCE_PREFIX": prefix}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment(**variables), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert Presence(settings).is_online("ann")
