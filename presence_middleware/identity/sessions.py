"""Sources that verify what a framework signed: session cookies, tickets, tokens.

The cryptography is the libraries' own (itsdangerous, WebOb, Pyramid, PyJWT), each imported when a
source of its kind is made. Whatever is expired, tampered with, foreign or garbage is nobody.

Of several cookies with one name, each source takes the one that its framework takes: the first one
for Flask, the last one for the others.
"""

import base64
import json
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import blake2b, sha1
from typing import Any
from uuid import UUID

from ..request import Request
from .reading import Read, Signing, as_id, cookie, nested

DAY = 24 * 3600
# How long the frameworks believe a session unless a site says otherwise.
FLASK_SECONDS = 31 * DAY
STARLETTE_SECONDS = 14 * DAY
PYRAMID_SECONDS = 1200
LONGEST = 8192  # characters of a cookie or token; browsers send half of it
TOKEN_SECRET_BYTES = 32  # of HS256 (RFC 7518 3.2)
REMEMBERED = 4096  # cookies and tokens
REMEMBERED_SECONDS = 60.0
_OCTAL = re.compile(r"\\([0-3][0-7]{2})")

Claim = tuple[object, float]
"""What was signed, and until when it holds, in seconds since the epoch."""

Verify = Callable[[str], Claim]
"""Tells what a value says; raises if nobody with its secret has signed it."""


def flask_session(argument: str, signing: Signing) -> Read:
    """A key of Flask's session cookie; Flask-Login's is `_user_id`."""
    from itsdangerous import URLSafeTimedSerializer

    serializer = URLSafeTimedSerializer(
        list(signing.secrets),
        salt="cookie-session",
        signer_kwargs={"key_derivation": "hmac", "digest_method": sha1},
    )

    def verify(value: str) -> Claim:
        session, signed = serializer.loads(value, FLASK_SECONDS, return_timestamp=True)
        return session, signed.timestamp() + FLASK_SECONDS

    return _session_cookie(argument, [verify], signing, to_id=_flask_id, last=False)


def starlette_session(argument: str, signing: Signing) -> Read:
    """A key of the cookie of Starlette's SessionMiddleware."""
    from itsdangerous import TimestampSigner

    signer = TimestampSigner(list(signing.secrets))

    def verify(value: str) -> Claim:
        session, signed = signer.unsign(value, STARLETTE_SECONDS, return_timestamp=True)
        return json.loads(base64.b64decode(session)), signed.timestamp() + STARLETTE_SECONDS

    return _session_cookie(argument, [verify], signing)


def pyramid_session(argument: str, signing: Signing) -> Read:
    """A key of the cookie of Pyramid's SignedCookieSessionFactory."""
    from webob.cookies import SignedSerializer

    def verifier(secret: str) -> Verify:
        loads = SignedSerializer(secret, "pyramid.session.", "sha512").loads

        def verify(value: str) -> Claim:
            renewed, _, session = loads(value.encode())
            return session, renewed + PYRAMID_SECONDS

        return verify

    return _session_cookie(argument, list(map(verifier, signing.secrets)), signing)


def auth_tkt(argument: str, signing: Signing) -> Read:
    """The user of a ticket of Pyramid's AuthTktCookieHelper, whose `timeout` it does not know."""
    from pyramid.authentication import AuthTktCookieHelper

    name = argument or "auth_tkt"

    def verifier(secret: str) -> Verify:
        identify = AuthTktCookieHelper(secret, name).identify

        def verify(value: str) -> Claim:
            ticket = identify(_TicketRequest({name: _unquoted(value)}))
            return ticket["userid"], float("inf")  # there is no ticket with another's secret

        return verify

    return _verified(cookie(name, last=True), list(map(verifier, signing.secrets)), as_id, signing)


def _unquoted(value: str) -> str:
    """A cookie without the escapes of a quoted one: the comma between two tokens is `\\054`."""
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), value)


class _TicketRequest:
    """What the ticket's helper asks of a request."""

    def __init__(self, cookies: Mapping[str, str]) -> None:
        self.cookies = cookies
        # Tickets for one address only are not made unless a site asks for them.
        self.environ: dict[str, Any] = {"REMOTE_ADDR": ""}


def bearer(claim: str, signing: Signing) -> Read:
    """A claim of the JWT in the Authorization header (RFC 6750), verified with fixed algorithms."""
    import jwt

    decoder = jwt.PyJWT({"verify_aud": False, "verify_sub": False})

    def verifier(secret: str) -> Verify:
        algorithms = _algorithms(secret)

        def verify(token: str) -> Claim:
            claims = decoder.decode(token, secret, algorithms)
            return claims, float(claims.get("exp", "inf"))

        return verify

    return _verified(
        _token,
        list(map(verifier, signing.secrets)),
        lambda claims: as_id(nested(claims, claim)),
        signing,
    )


def _token(request: Request) -> str | None:
    scheme, _, token = (request.header("authorization") or "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def can_verify_tokens(secret: str) -> bool:
    """Return whether `secret` is long enough for HS256; every public key (PEM) is.

    PyJWT warns of a shorter one at each token. Where warnings are errors, it accepts no token.
    """
    return len(secret.encode()) >= TOKEN_SECRET_BYTES


def _algorithms(secret: str) -> list[str]:
    """A public key never serves as a shared secret: whoever has it could sign with it."""
    if secret.lstrip().startswith("-----BEGIN"):
        return ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA"]
    return ["HS256", "HS384", "HS512"]


def _session_cookie(
    argument: str,
    verifiers: list[Verify],
    signing: Signing,
    *,
    to_id: Callable[[object], str | None] = as_id,
    last: bool = True,
) -> Read:
    """Read `KEY`, or `KEY@COOKIE` where the site gave its session cookie a name of its own.

    `to_id` makes an id of the value under that key. `last` chooses among cookies with one name.
    """
    key, _, name = argument.partition("@")
    return _verified(
        cookie(name or "session", last=last),
        verifiers,
        lambda session: to_id(nested(session, key)),
        signing,
    )


def _flask_id(value: object) -> str | None:
    """Return the id that a value of Flask's session is. A UUID is stored as `{" u": hex}`."""
    if isinstance(value, Mapping) and set(value) == {" u"}:
        return str(UUID(value[" u"]))
    return as_id(value)


def _verified(
    read: Read,
    verifiers: list[Verify],
    id_of: Callable[[object], str | None],
    signing: Signing,
) -> Read:
    """Verifies a value once, and again after a minute: that takes as long as twenty sightings.

    What is remembered is a digest of the value, whom it names, and until when.
    """
    known: dict[bytes, tuple[str | None, float]] = {}

    def check(value: str) -> tuple[str | None, float]:
        for verify in verifiers:
            with suppress(Exception):  # another's of the secrets, or whatever garbage leads to
                signed, until = verify(value)
                return id_of(signed), until
        return None, float("inf")

    def verified(request: Request) -> str | None:
        value = read(request)
        if not value or len(value) > LONGEST or not value.isascii():
            return None
        digest, now = blake2b(value.encode(), digest_size=32).digest(), time.time()
        id, until = known.get(digest, (None, 0.0))
        if until <= now:
            id, until = check(value)
            if signing.may_remember:
                _remember(known, digest, id, min(until, now + (REMEMBERED_SECONDS if id else 1)))
        return id if until > now else None

    return verified


def _remember(
    known: dict[bytes, tuple[str | None, float]], digest: bytes, id: str | None, until: float
) -> None:
    if len(known) >= REMEMBERED:
        known.clear()
    known[digest] = id, until
