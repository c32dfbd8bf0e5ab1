"""The WSGI wrapper (PEP 3333): the app gets the very same environ and start_response."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from .connections import Clock
from .presence import Presence, RequestPresence
from .recorder import Visit, recorder_for
from .settings import Settings
from .views import READER, VISIT, WsgiView

if TYPE_CHECKING:
    application: WSGIApplication


class PresenceMiddleware:
    """Wraps a WSGI app and records who asks it."""

    def __init__(
        self,
        app: WSGIApplication,
        *,
        settings: Settings | None = None,
        client: Any = None,
        clock: Clock | None = None,
    ) -> None:
        """Settings are the environment's by default; `client` and `clock` as for `Presence`.

        Raises `SettingsError` with everything that is wrong; never connects.
        """
        self.app = app
        self.recorder = recorder_for(settings, client, clock)
        self.presence = Presence(self.recorder.settings, client=client, clock=clock)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        outer: Visit | None = environ.get(VISIT)
        if outer is not None and outer.recorder is self.recorder:
            return self.app(environ, start_response)
        visit = environ[VISIT] = self.recorder.open(WsgiView(environ))
        environ[READER] = RequestPresence(self.presence, visit)
        try:
            body = self.app(environ, start_response)
        except BaseException:
            visit.end()
            raise
        if _is_complete(body, environ):
            visit.end()
            return body
        return (SizedBody if hasattr(body, "__len__") else Body)(body, visit)


def _is_complete(body: Any, environ: WSGIEnvironment) -> bool:
    """Whether a server may treat this body in a way of its own: as a whole, or by sendfile."""
    wrapper = environ.get("wsgi.file_wrapper")
    is_wrapped = isinstance(wrapper, type) and isinstance(body, wrapper)
    return isinstance(body, (list, tuple)) or is_wrapped or hasattr(body, "read")


class Body:
    """An app's iterable, handed to the server as it is; its `close` also ends the visit."""

    def __init__(self, body: Any, visit: Visit) -> None:
        self._body, self._visit = body, visit

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._body)

    def close(self) -> None:
        """What the server must call when it is done, however the request ended (PEP 3333)."""
        try:
            if hasattr(self._body, "close"):
                self._body.close()
        finally:
            self._visit.end()


class SizedBody(Body):
    """One whose length servers may ask: of length 1, it gets its Content-Length from them."""

    def __len__(self) -> int:
        return len(self._body)


def __getattr__(name: str) -> Any:
    """`application` is the app that `PRESENCE_APP` names, wrapped; loaded when a server asks."""
    if name != "application":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .loading import load_wrapped

    return load_wrapped(PresenceMiddleware)
