"""The package needs no Redis client and no framework until they are used."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["paste", "asgi"])
def test_importing_and_wrapping_bring_no_redis_client_and_no_framework(module: str) -> None:
    program = f"""
import sys, presence_middleware, presence_middleware.{module}
unwanted = "redis valkey fakeredis starlette fastapi flask django pyramid webob werkzeug web click"
if "{module}" == "asgi":
    presence_middleware.asgi.PresenceMiddleware(print)
else:
    presence_middleware.paste.filter_app_factory(print, {{}})
print([name for name in unwanted.split() if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")
