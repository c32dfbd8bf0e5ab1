"""Values that frameworks sign, made by their own libraries, and the sources that read them."""

import base64
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha512
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from flask import Flask
from flask.sessions import SecureCookieSessionInterface
from itsdangerous import TimestampSigner, URLSafeSerializer, URLSafeTimedSerializer
from pyramid.authentication import AuthTicket
from webob.cookies import SignedSerializer

from presence_middleware.parsers import DAY
from tests.support.asking import Request

KEY = "the key of the test's own site and long enough"
OTHER = "the key of quite another site and long enough"
PAIR, OTHER_PAIR = (rsa.generate_private_key(public_exponent=65537, key_size=2048) for _ in "ab")
PUBLIC = (
    PAIR.public_key()
    .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    .decode()
)
Session = dict[str, Any]
ANN: Session = {"who": "ann", "csrf": "of-the-session"}


@contextmanager
def at(moment: float) -> Iterator[None]:
    """The clock of this process stands, for libraries and package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: moment)
        yield


def flask_cookie(key: str, session: Session = ANN) -> str:
    app = Flask("a_site")
    app.secret_key = key
    serializer = SecureCookieSessionInterface().get_signing_serializer(app)
    assert serializer is not None
    return str(serializer.dumps(session))


def starlette_cookie(key: str, session: Session = ANN) -> str:
    return TimestampSigner(key).sign(base64.b64encode(json.dumps(session).encode())).decode()


def pyramid_cookie(key: str, session: Session = ANN) -> str:
    value = (int(time.time()), int(time.time()), session)
    return str(SignedSerializer(key, "pyramid.session.", "sha512").dumps(value).decode())


def ticket(key: str, session: Session = ANN) -> str:
    data = session.get("csrf", "") + session.get("noise", "")
    made = AuthTicket(key, session["who"], "0.0.0.0", user_data=data, hashalg="sha512")
    return str(made.cookie_value())


def signed_plainly(key: str, session: Session = ANN) -> str:
    return str(URLSafeSerializer(key, "of a plugin").dumps(session))


def signed_with_time(key: str, session: Session = ANN) -> str:
    kwargs = {"key_derivation": "hmac", "digest_method": sha512}
    return str(URLSafeTimedSerializer(key, "another: salt", signer_kwargs=kwargs).dumps(session))


def datasette_cookie(key: str, session: Session = ANN, **more: object) -> str:
    return str(URLSafeSerializer(key, "actor").dumps({"a": session, **more}))


def jwt_of(key: str, session: Session = ANN) -> str:
    return jwt.encode({"exp": int(time.time()) + 60, **session}, key, "HS256")


def jwt_of_pair(key: str, session: Session = ANN) -> str:
    pair = PAIR if key == KEY else OTHER_PAIR  # as text, each token would parse it again
    return jwt.encode({"exp": int(time.time()) + 60, **session}, pair, "RS256")


@dataclass(frozen=True)
class Scheme:
    """How a framework signs who somebody is, and the source that reads it."""

    source: str
    make: Callable[..., str]
    cookie: str = ""
    """In place of the header Authorization."""
    secret: str = KEY
    lasts: float = 0
    """Seconds that the framework believes it; zero if the value says so itself, or for ever."""

    def request(self, value: str | bytes) -> Request:
        raw = value.encode("latin-1") if isinstance(value, str) else value
        if self.cookie:
            return Request([("Cookie", self.cookie.encode() + b"=" + raw)])
        return Request([("Authorization", b"Bearer " + raw)])


SCHEMES = {
    "flask": Scheme("flask-session:who", flask_cookie, "session", lasts=31 * DAY),
    "starlette": Scheme("starlette-session:who", starlette_cookie, "session", lasts=14 * DAY),
    "pyramid": Scheme("pyramid-session:who", pyramid_cookie, "session", lasts=20 * 60),
    "ticket": Scheme("auth-tkt", ticket, "auth_tkt"),
    "signed": Scheme("signed:who@shop:of a plugin", signed_plainly, "shop"),
    "signed with time": Scheme(
        "signed:who@shop:another: salt", signed_with_time, "shop", lasts=31 * DAY
    ),
    "datasette": Scheme("signed:a.who@ds_actor:actor", datasette_cookie, "ds_actor"),
    "jwt": Scheme("bearer:who", jwt_of),
    "jwt in a cookie": Scheme("bearer:who@token", jwt_of, "token"),
    "jwt of a pair": Scheme("bearer:who", jwt_of_pair, secret=PUBLIC),
}
