"""`presence explain`: who a request counts as, and why."""

import sys
from ipaddress import ip_address

import click

from ..explain import Sent, explain, parse_header, parse_request
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
    answer = explain(context.site_settings(), sent)
    if as_json:
        output.document(answer)
        return
    output.line(answer["request"])
    width = max(len(rule["name"]) for rule in answer["rules"])
    for number, rule in enumerate(answer["rules"], 1):
        output.line(f"{number} {rule['name']:{width}}  {rule['result']}")
    output.line(answer["conclusion"], "bold")
    for hint in answer["hints"]:
        output.line(hint)
