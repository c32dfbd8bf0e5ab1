"""`presence explain`: who a request counts as, and why."""

import sys
from ipaddress import ip_address

import click

from ..explain import Sent, Step, explain, parse_header, parse_request
from . import context, output


@click.command("explain")
@click.argument("source", metavar="[-]", required=False, type=click.Choice(["-"]))
@click.option("--header", "headers", metavar="HEADER", multiple=True, help="Such as 'Cookie: a=b'.")
@click.option("--path", default="/", help="The path, perhaps with a query.")
@click.option("--method", default="GET", help="Such as POST.")
@click.option("--address", default="127.0.0.1", help="The client's address, or a proxy's.")
@context.json_option
def explain_command(
    *,
    source: str | None,
    headers: tuple[str, ...],
    path: str,
    method: str,
    address: str,
    as_json: bool,
) -> None:
    """Print who a request counts as, and why.

    With -, read the request from standard input: its first line and its headers. The settings
    (PRESENCE_*) apply as on the site. Neither the app nor Redis is asked. No secret is shown, and
    of cookies and tokens only names of keys.
    """
    if not path.startswith("/"):
        raise click.UsageError("--path begins with /, such as /t/42, without the host")
    try:
        given = [parse_header(header) for header in headers]
        if address:  # a Unix socket has none
            ip_address(address)
        sent = Sent(method, path, given, address)
        if source:
            text = sys.stdin.buffer.read().decode("utf-8", "surrogateescape")
            read = parse_request(text, address)
            sent = read._replace(headers=[*read.headers, *given])
    except ValueError as error:
        raise click.UsageError(f"the request cannot be read: {error}") from error
    lines = list(explain(context.site_settings(), sent))
    steps = [each for each in lines if isinstance(each, Step)]
    what, conclusion, *hints = [each for each in lines if isinstance(each, str)]
    if as_json:
        rules = [step._asdict() for step in steps]
        answer = {"request": what, "rules": rules, "conclusion": conclusion, "hints": hints}
        output.document(answer)
        return
    output.line(what)
    width = max(len(step.name) for step in steps)
    for number, step in enumerate(steps, 1):
        output.line(f"{number} {step.name:{width}}  {step.result}")
    output.line(conclusion, "bold")
    for hint in hints:
        output.line(hint)
