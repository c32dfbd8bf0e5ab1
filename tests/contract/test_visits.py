"""The visit of a request in a handler: its identity, `identify`, and the recorded id."""

import subprocess
import sys
from typing import Any

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


@pytest.mark.parametrize(
    ("given", "said", "expected"),
    [
        # What an inner layer says last wins; nobody withdraws it.
        *((None, [said], ("user", said.strip())) for said in ("ann", " ann ")),
        *((None, [said], ("user", str(said))) for said in (42, 0)),
        *((None, ["ann", nobody], ("user", "bob")) for nobody in (None, "", "  ")),
        # The default kind is that of `auth`, or else the first.
        ("a=user-agent, b=auth, c=visitor", ["ann"], ("b", "ann")),
        ("a=user-agent, b=visitor", ["ann"], ("a", "ann")),
        ("guest=ip:raw, user=session:id", ["ann"], ("guest", "ann")),
        ("user=identify, invisible=identify, guest=ip:raw", ["ann"], ("user", "ann")),
    ],
)
def test_the_identity_of_an_inner_layer_wins(
    given: str | None, said: list[Any], expected: tuple[str, str], unwritten: Any
) -> None:
    settings: Settings = unwritten(**({"identity": given} if given else {}))

    def layer(state: State) -> None:
        for each in said:
            visit_in(state).identify(each)

    for ask in (ask_wsgi, ask_asgi):
        assert ask(settings, Request(user="bob"), layer) == Identity(*expected)
    assert recorder_for(settings).flush()
    presence, (kind, id) = Presence(settings), expected
    assert {kind: n for kind, n in presence.counts().items() if n} == {kind: 1}
    assert presence.is_online(id, kind)


def test_an_identified_kind_must_be_configured(settings: Settings) -> None:
    def layer(state: State) -> None:
        visit_in(state).identify("ann", kind="guest")
        with pytest.raises(QueryError, match=r"unknown kind .robot.: .* user, guest"):
            visit_in(state).identify("ann", kind="robot")

    for ask in (ask_wsgi, ask_asgi):
        assert ask(settings, Request(user="bob"), layer) == Identity("guest", "ann")


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
