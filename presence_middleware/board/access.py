"""Access to ids, which needs the token of `PRESENCE_BOARD_TOKEN`."""

import hmac
from base64 import b64decode
from binascii import Error

from .messages import Response, problem

REALM = 'realm="presence"'


def refusal(token: str, authorization: str | None) -> Response | None:
    """Return the response that refuses a reader; None if the reader has the token.

    `authorization` is the header of the request: the token as a bearer token, or as the password
    of HTTP Basic. If `token` is empty, every reader is refused.
    """
    if not token:
        return problem(403, "listing people is disabled; set PRESENCE_BOARD_TOKEN to enable it")
    scheme, _, credentials = (authorization or "").partition(" ")
    is_bearer = scheme.lower() == "bearer"
    secret = _bytes(credentials) if is_bearer else _password(credentials)
    if hmac.compare_digest(secret, token.encode()):
        return None
    # With Basic, a browser shows a dialog for the token. A script that sent a bearer token has a
    # form of its own.
    challenge = f'Bearer {REALM}, error="invalid_token"' if is_bearer else f"Basic {REALM}"
    return problem(401, "listing people needs the board's token", ("WWW-Authenticate", challenge))


def _bytes(credentials: str) -> bytes:
    return credentials.strip().encode("utf-8", "surrogateescape")


def _password(credentials: str) -> bytes:
    """Return the password of HTTP Basic, for any user name; empty if there is none."""
    try:
        return b64decode(_bytes(credentials), validate=True).partition(b":")[2]
    except Error:
        return b""
