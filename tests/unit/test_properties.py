"""Headers, read by this package and by Starlette."""

import re
import string
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.datastructures import Headers

from presence_middleware.request import AsgiRequest, WsgiRequest
from tests.support.asking import Request

FEW = settings(deadline=None, max_examples=200)

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
