"""nginx in front of a site, where it is installed."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Self

import pytest

from tests.support.backends import wait_until
from tests.support.servers import STOP_SECONDS, answers, free_port

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


class Nginx:
    """A proxy with given `location` blocks, from `with` to the end of the block."""

    def __init__(self, folder: Path, locations: str) -> None:
        """`folder` receives its files. `locations` are written as in a `server` block."""
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self._folder = folder
        folder.mkdir(exist_ok=True)
        text = CONFIGURATION.format(port=self.port, locations=locations)
        (folder / "nginx.conf").write_text(text)

    def __enter__(self) -> Self:
        command = [str(NGINX), "-p", str(self._folder), "-c", "nginx.conf", "-e", "stderr"]
        with (self._folder / "log").open("w") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            wait_until(self._answers)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(STOP_SECONDS)

    def _answers(self) -> bool:
        assert self._process.poll() is None, (self._folder / "log").read_text()
        return answers(self.port)
