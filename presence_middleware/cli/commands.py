"""The `presence` command and what it is made of; each part is in a module of its concept."""

import click

from .health import config, doctor
from .past import history, peak
from .replay import replay
from .site import Wrong, errors
from .watch import watch
from .who import count, forget, friends, leave, online, seen

STATUS = """\b
Exit status:
  0  done, or yes
  1  no: not online, something is wrong, nothing recorded, or you declined
  2  the usage or the settings are wrong
  3  Redis cannot answer
"""


@click.group(epilog=STATUS, context_settings={"max_content_width": 100})
@click.version_option(package_name="presence_middleware")
def presence() -> None:
    """Who is online on this site, right now? Settings are those of the environment: PRESENCE_*."""


@presence.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen.")
@click.option(
    "--port", type=click.IntRange(1, 65535), default=8000, show_default=True, help="And on which."
)
def demo(host: str, port: int) -> None:
    """Serve a small site with two workers, to see the middleware at work."""
    try:
        from ..demo.server import serve
    except ModuleNotFoundError as error:
        raise Wrong("needs pip install 'presence_middleware[demo]'") from error
    with errors():
        serve(host, port)


_PEOPLE = (count, online, seen, friends, leave, forget)
for command in (*_PEOPLE, history, peak, watch, replay, config, doctor):
    presence.add_command(command)
