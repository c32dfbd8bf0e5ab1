"""Starlette and FastAPI: a dependency for handlers, and a context processor for templates."""

from typing import TYPE_CHECKING, Annotated, Any

from .errors import importing
from .lookup import TemplatePresence, presence_of, template_presence
from .presence import AsyncPresence

with importing("starlette"):
    from starlette.requests import HTTPConnection, Request


# FastAPI recognizes a parameter by its annotation. `HTTPConnection` is the only one that it fills
# for requests and WebSockets alike.
async def get_presence(connection: HTTPConnection) -> AsyncPresence:
    """Return the reader of a request or WebSocket, as a dependency of FastAPI.

    Raises `NotWrapped` if the middleware has not seen it.
    """
    return presence_of(connection)


def presence_context(request: Request) -> dict[str, TemplatePresence]:
    """Return `presence` for templates: `Jinja2Templates(…, context_processors=[presence_context])`.

    Starlette renders in the event loop if the handler is `async def`. A template that asks there
    raises `WouldBlock`, so write such handlers with `def`, which Starlette runs in threads.
    """
    return {"presence": template_presence(request)}


if TYPE_CHECKING:
    from fastapi import Depends

    Here = Annotated[AsyncPresence, Depends(get_presence)]
    """The annotation of a parameter of FastAPI: `async def home(presence: Here)`."""
else:

    def __getattr__(name: str) -> Any:
        # FastAPI is imported only for sites that use `Here`: a site of Starlette may not have it.
        if name != "Here":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        with importing("starlette.Here", "fastapi", "; without FastAPI, use presence_of(request)"):
            from fastapi import Depends
        here = globals()["Here"] = Annotated[AsyncPresence, Depends(get_presence)]
        return here
