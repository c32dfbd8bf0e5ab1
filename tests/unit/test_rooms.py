"""The rules of rooms: which room a path is in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presence_middleware import Settings
from presence_middleware import rooms as room_rules
from presence_middleware.request import WsgiRequest
from presence_middleware.rooms import MAX_NAME, Rooms
from presence_middleware.stores import NOWHERE, room_number
from tests.support.asking import Request
from tests.support.memory import traced


def rooms(*rules: str) -> Rooms:
    return Rooms(Settings.from_env({}, rooms=", ".join(rules)).rooms)


FORUMS = rooms("/t/{topic}/*", "/docs/*", "/c/{category}/{page}", "/about", "/blog/")
NAMES = {  # of rooms, by path
    **dict.fromkeys(["/t/42", "/t/42/", "/t/42/some-title", "/t/42/some-title/2"], "/t/42"),
    **{"/t/a b/ü\n": "/t/a b", "/docs": "/docs", "/docs/": "/docs", "/docs/x/y": "/docs"},
    **{"/c/art/1": "/c/art/1", "/c/art/1/": "/c/art/1", "/about": "/about"},
    **{"/blog": "/blog", "/blog/": "/blog"},
    f"/t/{'x' * (MAX_NAME - 3)}/y": f"/t/{'x' * (MAX_NAME - 3)}",
}
NOWHERES = [
    *("/t", "/t/", "/t//42", "/docsx", "/c/art/1/x", "/c/art", "/about/us", "/ABOUT", "/blog/1"),
    *("/", "", "chat:7", f"/t/{'x' * (MAX_NAME - 2)}"),
    # A pattern that goes back and forth in them takes minutes.
    *("/t/" + "/" * 60_000, "/c/" + "a/" * 60_000, "/" * 120_000),
]


def test_a_path_is_in_the_room_of_the_first_rule_that_fits() -> None:
    for path in (*NAMES, *NOWHERES):
        name = NAMES.get(path)
        assert FORUMS.name_of(path) == name, path
        assert FORUMS.number_of(path) == room_number(name or path), path
        assert Rooms(()).name_of(path) is None, "without rules"


@pytest.mark.parametrize(
    ("rules", "path", "name"),
    [
        *((["/*"], "/any/thing", "/"), (["/*"], "/", "/"), (["/"], "/", "/"), (["/"], "/x", None)),
        *((["/a/{b}/c"], "/a/x/c", "/a/x/c"), (["/a/{b}", "/a/*"], "/a/b/c", "/a")),
        *((["/a/*", "/a/{b}"], "/a/b", "/a"), (["/a.b/*"], "/axb/c", None)),
        *((["named"], path, None) for path in ("", "/", "/t/1")),
    ],
)
def test_rules_are_read_as_they_are_written(rules: list[str], path: str, name: str | None) -> None:
    assert rooms(*rules).name_of(path) == name


@pytest.mark.parametrize("length", [0, 10_000])
def test_made_up_paths_take_bounded_memory(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room_rules, "REMEMBERED_PATHS", 100)
    site = rooms("/t/{topic}/*")
    with traced() as held:
        for number in range(5000):
            assert site.number_at(f"/t/{number}/{'x' * length}") == room_number(f"/t/{number}")
        assert held() < 200_000


@given(st.lists(st.text(min_size=1), unique=True, max_size=50))
def test_numbers_are_whole_numbers_that_a_score_holds_and_no_names_share(names: list[str]) -> None:
    numbers = [room_number(name) for name in names]
    assert len(set(numbers)) == len(names)
    assert all(NOWHERE < number < 2**53 and float(number) == number for number in numbers)


SITE = rooms("/t/{topic}/*", "/shop/t/{topic}", "/café/*")
# A path, a header Sec-Fetch-Mode, where the app is mounted, and the room; None leaves it.
ENTERED: list[tuple[str, str, str, str | None]] = [
    *(("/t/1/x", mode, "", "/t/1") for mode in ("navigate", "cors", "")),
    ("/home", "navigate", "", "nowhere"),
    *(("/api/vote", mode, "", None) for mode in ("cors", "no-cors", "same-origin", "websocket")),
    ("/api/vote", "", "", None),
    ("/t/1", "", "/shop", "/t/1"),
    *(("/shop/t/1", "", mount, "/shop/t/1") for mount in ("", "/sho")),
    ("/café/x", "", "", "/café"),
]


@pytest.mark.parametrize(("path", "mode", "mount", "room"), ENTERED)
def test_only_a_navigation_leaves_rooms(path: str, mode: str, mount: str, room: str | None) -> None:
    headers = [("Sec-Fetch-Mode", mode.encode())] if mode else []
    number = NOWHERE if room == "nowhere" else room and room_number(room)
    request = Request(headers, path=path, mount=mount)
    # Some layers of ASGI take the mount point out of the path.
    below = Request(headers, path=path, mount=mount, state={"path": path}).views()[1]
    for view in (*request.views(), below):
        assert SITE.entered(view, 5.0) == (None if number is None else (number, 5.0))


def test_a_request_that_cannot_be_read_changes_nothing() -> None:
    assert FORUMS.entered(WsgiRequest({"PATH_INFO": 5}), 5.0) is None
    broken = {"PATH_INFO": "/home", "HTTP_SEC_FETCH_MODE": 5}
    assert FORUMS.entered(WsgiRequest(broken), 5.0) is None
