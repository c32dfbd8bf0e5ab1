"""nginx in front of a site, where it is installed."""

import os
import shutil
from pathlib import Path

import pytest

from tests.support.servers import WebServer

# Debian puts it where only root looks for commands.
NGINX = shutil.which("nginx", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"]))
needs_nginx = pytest.mark.skipif(NGINX is None, reason="nginx is not installed")

CONFIGURATION = """
daemon off;
master_process off;
pid nginx.pid;
error_log stderr;
events {{ }}
http {{
    access_log off;
    client_body_temp_path body; proxy_temp_path proxy;
    fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
    server {{
        listen 127.0.0.1:{port};
        {locations}
    }}
}}
"""


class Nginx(WebServer):
    """A proxy with given `location` blocks, from `with` to the end of the block."""

    def __init__(self, folder: Path, locations: str) -> None:
        """`folder` receives its files. `locations` are written as in a `server` block."""
        options = ("-p", str(folder), "-c", "nginx.conf", "-e", "stderr")
        super().__init__(lambda _: [str(NGINX), *options], folder, folder / "log")
        folder.mkdir()
        text = CONFIGURATION.format(port=self.port, locations=locations)
        (folder / "nginx.conf").write_text(text)
