"""Who may see names: whoever has `PRESENCE_BOARD_TOKEN`."""

import hmac
from base64 import b64decode
from binascii import Error

from .messages import Response, problem

REALM = 'realm="presence"'


def refusal(token: str, authorization: str | None) -> Response | None:
    """Why this reader may see no names; None if he may."""
    if not token:
        return problem(403, "names are off: they need PRESENCE_BOARD_TOKEN")
    scheme, _, given = (authorization or "").partition(" ")
    is_bearer = scheme.lower() == "bearer"
    found = _bytes(given) if is_bearer else _password(given)
    if hmac.compare_digest(found, token.encode()):
        return None
    # To Basic, a browser asks its user for the token; a script that has one to send asks itself.
    challenge = f'Bearer {REALM}, error="invalid_token"' if is_bearer else f"Basic {REALM}"
    return problem(401, "names need the token of the board", ("WWW-Authenticate", challenge))


def _bytes(given: str) -> bytes:
    return given.strip().encode("utf-8", "surrogateescape")


def _password(given: str) -> bytes:
    """The password of HTTP Basic, whatever the user's name is."""
    try:
        return b64decode(_bytes(given), validate=True).partition(b":")[2]
    except Error:
        return b""
