"""Requests, read by this package and by the libraries of frameworks; and properties of ids."""

import re
import string
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from starlette.datastructures import Headers
from starlette.requests import cookie_parser

from presence_middleware.identity.ids import cookie, normalize_id
from presence_middleware.request import AsgiRequest, WsgiRequest
from tests.support.asking import Request

FEW = settings(deadline=None, max_examples=200)

# RFC 9110 5.6.2; and RFC 6265 4.1.1, which leaves out blanks, quotes, comma, semicolon, backslash.
TOKEN = string.ascii_letters + string.digits + "!#$%&'*+-.^_`|~"
OCTETS = "".join(c for c in map(chr, range(0x21, 0x7F)) if c not in '",;\\')

names = st.text(TOKEN, min_size=1, max_size=8)
octets = st.text(OCTETS, max_size=20)
values_and_read = st.one_of(
    octets.map(lambda value: (value, value)), octets.map(lambda value: (f'"{value}"', value))
)


def read(name: str, header: bytes) -> str | None:
    """A cookie as we read it, of which both protocols must agree."""
    wsgi, asgi = Request([("Cookie", header)]).views()
    found = cookie(name)(wsgi)
    assert cookie(name)(asgi) == found
    return found


@FEW
@given(st.dictionaries(names, values_and_read, min_size=1, max_size=6), names)
def test_well_formed_cookies_are_read_as_starlette_reads_them(
    cookies: dict[str, tuple[str, str]], other: str
) -> None:
    """Well formed: as RFC 6265 4.2.1 has browsers send them, `name=value; name=value`, each name
    a token that is there once, each value of cookie-octets, bare or in quotes as a whole.
    """
    header = "; ".join(f"{name}={written}" for name, (written, _) in cookies.items()).encode()
    expected = {name: value for name, (_, value) in cookies.items()}
    assert {name: read(name, header) for name in cookies} == expected
    assert cookie_parser(header.decode()) == expected
    assert read(other, header) == expected.get(other)


# An underscore is none of a name that a front end lets through: WSGI takes `X_User` for `X-User`.
field_names = st.one_of(
    st.sampled_from(["Cookie", "X-User", "user-agent", "FORWARDED", "1"]),
    st.text(string.ascii_letters + string.digits + "-", min_size=1, max_size=8),
).filter(lambda name: name.lower() not in {"content-type", "content-length"})
field_values = st.binary(max_size=12).map(lambda value: re.sub(rb"[\r\n\0]", b"", value))


@FEW
@given(st.lists(st.tuples(field_names, field_values), max_size=5), field_names, st.randoms())
def test_headers_are_read_as_starlette_reads_them(
    fields: list[tuple[str, bytes]], absent: str, random: Any
) -> None:
    raw = [(name.encode(), value) for name, value in fields]
    wsgi, asgi = WsgiRequest(Request(fields).environ()), AsgiRequest({"headers": raw})
    starlette = Headers(raw=[(name.lower(), value) for name, value in raw])
    for name in [*(name for name, _ in fields), absent]:
        asked = "".join(random.choice((c.lower(), c.upper())) for c in name)
        joint = b"; " if name.lower() == "cookie" else b","
        said = [value.encode("latin-1") for value in starlette.getlist(name)]
        expected = joint.join(said).decode("utf-8", "surrogateescape") if said else None
        assert wsgi.header(asked) == asgi.header(asked) == expected


def test_the_two_headers_that_wsgi_keeps_elsewhere_are_headers_as_well() -> None:
    wsgi = WsgiRequest({"CONTENT_TYPE": "text/plain", "CONTENT_LENGTH": "5"})
    assert (wsgi.header("Content-Type"), wsgi.header("content-length")) == ("text/plain", "5")


# Long ones and halves of characters are frequent in it.
ids = st.one_of(
    st.text(st.characters(), max_size=300),
    st.text("aé小🦊\udcff\ud800 ", min_size=60, max_size=300),
    st.integers(250, 260).map(lambda length: "x" * length),
    st.integers(125, 130).map(lambda length: "é" * length),
)


@FEW
@given(st.lists(ids, min_size=2, max_size=8, unique_by=str.strip))
@example(["x" * 256, "x" * 257, "x" * 258])
@example(["\udcc3\udca9", "é", "\udcc3", "\ud800", "\udc00", "\ud800\udc00"])
def test_ids_are_short_text_and_distinct(said: list[str]) -> None:
    """Spaces around an id are not significant."""
    kept = [normalize_id(id) for id in said]
    assert len(set(kept)) == len(said)
    assert max(len(id.encode()) for id in kept) <= 256
    assert [normalize_id(f" {id}\n") for id in said] == kept
    assert [normalize_id(id) for id in kept] == kept, "what is kept is asked for as it is"
