"""Sources that verify signed values of frameworks: session cookies, tickets, tokens.

The libraries of the frameworks verify (itsdangerous, WebOb, Pyramid, PyJWT). Each is imported when
a chain uses it. A value that is expired, altered, malformed or signed with another key yields None.

If several cookies have the same name, each source reads the same cookie as its framework: Flask
the first, the others the last.
"""

import base64
import json
import re
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial, reduce
from hashlib import sha1, sha256, sha512
from operator import methodcaller
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from ..parsers import DAY, is_public_key
from ..request import Request
from .ids import FindId, No, Secrets, as_id, cookie, missing, walk

# How long the frameworks accept a session unless a site sets another time.
FLASK_SECONDS = 31 * DAY
STARLETTE_SECONDS = 14 * DAY
SIGNED_SECONDS = 31 * DAY  # of a cookie with a timestamp: as long as a session of Flask
PYRAMID_SECONDS = 1200
MAX_TOKEN_LENGTH = 8192  # characters of a cookie or token; browsers send half of it
_NEVER = float("inf")
_ANOTHER_SECRET = No(
    "signed with another secret",
    "check that PRESENCE_SESSION_SECRET is the secret of the framework",
)
_EXPIRED = No("expired")
_UNUSUAL = No(f"longer than {MAX_TOKEN_LENGTH} characters, or not ASCII")
# The least of HS256 (RFC 7518 3.2); every public key (PEM) is longer. PyJWT warns of a shorter
# secret at each token. Where warnings are errors, it accepts no token.
TOKEN_SECRET_BYTES = 32
# The default salt of itsdangerous, and the salt of Datasette's cookie.
DEFAULT_SALT, DATASETTE_SALT = "itsdangerous", "actor"
# The digits of Datasette's `baseconv.base62`. Six of them are a time of this century.
_BASE62 = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789abcdefghijklmnopqrstuvwxyz"
_EXPIRY = re.compile(r"[0-9A-Za-z]{1,10}")
_OCTAL = re.compile(r"\\([0-3][0-7]{2})")

Payload = tuple[Any, float]
"""The signed value, and the time at which it expires, in seconds since the epoch."""

Verify = Callable[[str, str], Payload]
"""Returns the payload of a value, given a secret; raises any exception if that did not sign it."""


def flask_session(argument: str, secrets: Secrets) -> FindId:
    """Return a reader of a key of Flask's session cookie: `KEY` or `KEY@COOKIE`."""
    from itsdangerous import URLSafeTimedSerializer

    signing = {"key_derivation": "hmac", "digest_method": sha1}
    serializer = cache(
        partial(URLSafeTimedSerializer, salt="cookie-session", signer_kwargs=signing)
    )

    def verify(secret: str, value: str) -> Payload:
        return _timed(serializer(secret).loads, value, FLASK_SECONDS)

    def to_id(value: Any) -> str | None:
        # Flask stores a UUID as `{" u": hex}`.
        is_uuid = isinstance(value, dict) and set(value) == {" u"}
        return as_id(UUID(value[" u"]) if is_uuid else value)

    key, _, name = argument.partition("@")
    return _verified(cookie(name or "session"), verify, key, secrets, to_id)


def starlette_session(argument: str, secrets: Secrets) -> FindId:
    """Return a reader of a key of Starlette's SessionMiddleware: `KEY` or `KEY@COOKIE`."""
    from itsdangerous import TimestampSigner

    signer = cache(TimestampSigner)

    def verify(secret: str, value: str) -> Payload:
        session, until = _timed(signer(secret).unsign, value, STARLETTE_SECONDS)
        return json.loads(base64.b64decode(session)), until

    key, _, name = argument.partition("@")
    return _verified(cookie(name or "session", last=True), verify, key, secrets)


def pyramid_session(argument: str, secrets: Secrets) -> FindId:
    """Return a reader of a key of Pyramid's SignedCookieSessionFactory: `KEY` or `KEY@COOKIE`."""
    from webob.cookies import SignedSerializer

    serializer = cache(partial(SignedSerializer, salt="pyramid.session.", hashalg="sha512"))

    def verify(secret: str, value: str) -> Payload:
        renewed, _, session = serializer(secret).loads(value.encode())
        return session, renewed + PYRAMID_SECONDS

    key, _, name = argument.partition("@")
    return _verified(cookie(name or "session", last=True), verify, key, secrets)


def auth_tkt(argument: str, secrets: Secrets) -> FindId:
    """Return a reader of the user of a ticket of Pyramid's AuthTktCookieHelper.

    `argument` is the name of the cookie, by default `auth_tkt`. A ticket does not contain its
    `timeout`, so it is accepted for as long as it is sent.
    """
    from pyramid.authentication import AuthTktCookieHelper

    name = argument or "auth_tkt"
    helper = cache(partial(AuthTktCookieHelper, cookie_name=name))

    def verify(secret: str, value: str) -> Payload:
        # Undo the escapes of a quoted cookie: the comma between two tokens is `\054`.
        ticket = _OCTAL.sub(lambda match: chr(int(match[1], 8)), value)
        # By default, tickets are not bound to an address.
        request = SimpleNamespace(cookies={name: ticket}, environ={"REMOTE_ADDR": ""})
        # Raises TypeError if the identity is None, because of another secret.
        return helper(secret).identify(request)["userid"], _NEVER

    return _verified(cookie(name, last=True), verify, "", secrets)


def signed_cookie(argument: str, secrets: Secrets) -> FindId:
    """Return a reader of a cookie that a site or another framework signs with itsdangerous.

    `argument` is `KEY@COOKIE` or `KEY@COOKIE:SALT`. Without a KEY, the payload itself is the id.
    Cookies of `URLSafeSerializer` and of `URLSafeTimedSerializer` are accepted, the latter for 31
    days. Both key derivations are tried, with SHA-1, SHA-256 or SHA-512.
    """
    from itsdangerous import URLSafeSerializer, URLSafeTimedSerializer

    # The name of a cookie cannot contain a colon, so the salt begins after the first colon.
    key, _, rest = argument.partition("@")
    name, _, given = rest.partition(":")
    salt = given or DEFAULT_SALT

    # The key derivations are the defaults of itsdangerous and of Flask.
    signers = [
        {"key_derivation": derivation, "digest_method": method}
        for derivation in ("django-concat", "hmac")
        for method in (sha1, sha256, sha512)
    ]

    @cache
    def serializer(type: Any, secret: str) -> Any:
        return type(secret, salt, signer_kwargs=signers[0], fallback_signers=signers[1:])

    def verify(secret: str, value: str) -> Payload:
        # A payload contains no dot, except at its start if it is compressed. A timestamp adds a
        # second separator.
        if value.count(".", 1) >= 2:
            return _timed(serializer(URLSafeTimedSerializer, secret).loads, value, SIGNED_SECONDS)
        payload = serializer(URLSafeSerializer, secret).loads(value)
        # Datasette stores the time at which an actor expires under `e`, in base 62.
        expiry: Any = walk(payload, "e") if salt == DATASETTE_SALT else None
        if not expiry:
            return payload, _NEVER
        if not _EXPIRY.fullmatch(expiry):
            raise ValueError("no time")
        digits = map(_BASE62.index, expiry)
        return payload, float(reduce(lambda seconds, digit: 62 * seconds + digit, digits))

    return _verified(cookie(name, last=True), verify, key, secrets, what="the cookie")


def bearer(argument: str, secrets: Secrets) -> FindId:
    """Return a reader of a claim of a JWT, verified with fixed algorithms.

    `argument` is `CLAIM` for the token in the Authorization header (RFC 6750), or `CLAIM@COOKIE`
    for the token in a cookie, with or without `Bearer ` before it.
    """
    import jwt

    claim, _, name = argument.partition("@")
    # Sites put numbers into texts, and the clock judges the expiry of what is remembered.
    decoder = jwt.PyJWT(
        {"verify_aud": False, "verify_sub": False, "verify_jti": False, "verify_exp": False}
    )

    def verify(secret: str, token: str) -> Payload:
        claims = decoder.decode(token, secret, algorithms_for(secret))
        return claims, float(int(claims["exp"])) if "exp" in claims else _NEVER

    place = cookie(name, last=True) if name else methodcaller("header", "authorization")

    def read(request: Request) -> str | None:
        value: str | None = place(request)
        scheme, space, token = (value or "").partition(" ")
        if space and scheme.lower() == "bearer":
            return token.strip()
        return value if name else None

    return _verified(read, verify, claim, secrets, what="the token")


def algorithms_for(secret: str) -> list[str]:
    """Return the algorithms for a public key or for a shared secret, never both.

    Otherwise, a client could use the public key as a shared secret and sign its own tokens.
    """
    if is_public_key(secret):
        families = [f"{kind}{bits}" for kind in ("RS", "PS", "ES") for bits in (256, 384, 512)]
        return [*families, "ES256K", "EdDSA"]
    return ["HS256", "HS384", "HS512"]


def _timed(loads: Callable[..., Any], value: str, seconds: float) -> Payload:
    """Return the payload of a value that itsdangerous has signed with a timestamp.

    With any age as the highest, it still refuses what was signed in the future.
    """
    payload, signed = loads(value, _NEVER, return_timestamp=True)
    return payload, signed.timestamp() + seconds


def _verified(
    read: FindId,
    verify: Verify,
    key: str,
    secrets: Secrets,
    to_id: Callable[[Any], str | None] = as_id,
    *,
    what: str = "the session",
) -> FindId:
    """Return a source of signed values: `to_id` of what a payload has under `key`.

    The value from `read` is verified with each secret. Without a `key`, the payload itself is the
    id. `what` names the payload in reasons. What expires while a request is open, such as a
    WebSocket, was valid when the site accepted it, and counts to the end.
    """

    def find(request: Request) -> str | None:
        value = read(request)
        if not value:
            return None
        if len(value) > MAX_TOKEN_LENGTH or not value.isascii():
            return _UNUSUAL
        id: str = _ANOTHER_SECRET
        now = time.time()
        until = now + 1  # a host whose clock is ahead may have signed it
        for secret in secrets:
            with suppress(Exception):  # of another secret, or anything of malformed values
                payload, until = verify(secret, value)
                id = to_id(walk(payload, key) if key else payload) or missing(what, payload, key)
                break
        if until < request.holds_until:  # noqa: PLR1730 - a call of `min` takes longer
            request.holds_until = until
        return id if until > now - request.age else _EXPIRED

    return find
