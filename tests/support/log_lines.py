"""Requests as the lines of an access log hold them."""

from presence_middleware.request import WsgiRequest


def request_of(
    address: str, agent: str, path: str = "/", user: str = "", referer: str = ""
) -> WsgiRequest:
    """Return a GET request. An empty field is absent, as `-` is in a log."""
    environ = {
        "REMOTE_ADDR": address,
        "REQUEST_METHOD": "GET",
        "PATH_INFO": path,
        "REMOTE_USER": user,
        "HTTP_REFERER": referer,
        "HTTP_USER_AGENT": agent,
    }
    return WsgiRequest({field: value for field, value in environ.items() if value})
