"""The client's address of a request, read through trusted proxies only.

Only addresses that a trusted proxy appended are believed, never those that a client sent. So
addresses are read from the right, where the nearest proxy wrote. The first address that does not
belong to a trusted proxy is the client's (RFC 7239; X-Forwarded-For by the same rule).
"""

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from socket import AF_INET, AF_INET6, inet_pton
from typing import Literal, NamedTuple

from ..parsers import items, text_of
from ..request import Locate, Request, StateRequest, text

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


class Bits(NamedTuple):
    """How many bits of an IPv4 and of an IPv6 address are used."""

    v4: int
    v6: int

    def __str__(self) -> str:
        return f"/{self.v4}, /{self.v6}"


WHOLE = Bits(32, 128)
MAX_ADDRESS_LENGTH = 64  # characters, with brackets, interface and port
ADDRESS_HEADERS = ("forwarded", "x-forwarded-for")
MOST_HOPS = 32  # addresses of a header that are read
MOST_COMMAS = 64  # of `Forwarded`: each may begin an element, or be inside of quotation marks
MAX_HEADER_LENGTH = 4096  # characters of a header that are read
_PROXIES = "the number of proxies in front, such as 1, or networks: 10.0.0.0/8, fd00::/8, unix"
_BITS = re.compile(r"/?(\d{1,2})\s*,\s*/?(\d{1,3})")
_NAME = r"[!#$%&'*+.^_`|~0-9A-Za-z-]++"
_QUOTED = r'"(?:[^"\\]|\\.)*+"'
_BARE = r'[^\s"\\,;=]++'  # also an address without the quotation marks that it should have
_PAIR = rf"({_NAME})=({_QUOTED}|{_BARE})"
_ELEMENT = re.compile(rf"[ \t]*+(?:{_PAIR})?(?:[ \t]*+;[ \t]*+(?:{_PAIR})?)*+[ \t]*+")
_PAIRS = re.compile(_PAIR)
_ESCAPE = re.compile(r"\\(.)")
_WITH_PORT = re.compile(r"\[([^\]]*)\](?::\w+)?|(\d+\.\d+\.\d+\.\d+):\w+")


@dataclass(frozen=True)
class Proxies:
    """The proxies that are trusted to report the client's address."""

    hops: int = 0
    """The number of proxies, whatever their addresses; 0 to use `networks`."""
    networks: tuple[Network, ...] = ()
    unix: bool = False
    """True if a peer on a unix socket, which has no address, is trusted."""

    def __str__(self) -> str:
        names = [*map(str, self.networks), *(["unix"] if self.unix else [])]
        return str(self.hops) if self.hops else ", ".join(names)

    __repr__ = __str__

    def __bool__(self) -> bool:
        return bool(self.hops or self.networks or self.unix)

    def __contains__(self, address: Address | None) -> bool:
        return self.network_of(address) is not None

    def network_of(self, address: Address | None) -> Network | Literal["unix"] | None:
        """Return the network of a trusted peer; None for others. A unix socket has no address."""
        if address is None:
            return "unix" if self.unix else None
        return next((network for network in self.networks if address in network), None)

    def client(self, peer: Address | None, hops: list[Address | None]) -> Address | None:
        """Return the client behind `hops`, of which the last is the nearest."""
        # Each trusted proxy appended an address. The outermost of them appended the client's.
        if self.hops:
            return (hops[-self.hops] if len(hops) >= self.hops else None) or peer
        client = peer
        for hop in reversed(hops):
            if hop is None or client not in self:
                break
            client = hop
        return client


def parse_proxies(value: object) -> Proxies:
    """Parse the trusted proxies of a setting. Raises `ValueError` with the accepted form."""
    text = str(value).strip()
    if text.isascii() and text.isdigit() and int(text) <= MOST_HOPS:
        return Proxies(hops=int(text))
    names = items(text)
    try:
        networks = tuple(_network(name) for name in names if name != "unix")
    except ValueError:
        raise ValueError(_PROXIES) from None
    return Proxies(networks=networks, unix="unix" in names)


def _network(name: str) -> Network:
    """Parse a network; IPv4 in IPv6 becomes IPv4, as an address does that is compared with it."""
    network = ip_network(name, strict=False)
    mapped = getattr(network.network_address, "ipv4_mapped", None)
    return ip_network((mapped, network.prefixlen - 96)) if mapped else network


# The networks of proxies. `is_private` includes more: also addresses of examples and benchmarks.
# 100.64.0.0/10 is of carriers, and of the containers of some clouds.
_INTERNAL = parse_proxies(
    "127.0.0.0/8, 10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16, 169.254.0.0/16, 100.64.0.0/10, "
    "::1/128, fc00::/7, fe80::/10, unix"
)


def parse_prefix(value: object) -> Bits:
    """Parse the bits of IPv4 and of IPv6 addresses. Raises `ValueError` with the accepted form."""
    match = _BITS.fullmatch(text_of(value).strip())
    if not match or int(match[1]) > WHOLE[0] or int(match[2]) > WHOLE[1]:
        raise ValueError("the bits of IPv4 and IPv6 addresses that are used, such as /24, /56")
    return Bits(int(match[1]), int(match[2]))


def locator(proxies: Proxies, bits: Bits) -> Locate | None:
    """Return a function that finds the client's address; None if that is always the peer's.

    The function returns the first `bits` of the address, or None if no address is reliable.

    A proxy appends to `Forwarded` or to `X-Forwarded-For`, and passes on the other header as the
    client sent it. So if both are present and lead to different clients, neither is believed.
    """
    if not proxies and bits == WHOLE:
        return None

    def locate(request: StateRequest) -> str | None:
        peer = _peer(request)
        given = request.forwarded or map(request.header, ADDRESS_HEADERS)
        forwarded, listed = (text(value or "")[-MAX_HEADER_LENGTH:] for value in given)
        hops = [parse_address(each) for each in items(listed)[-MOST_HOPS:]]
        headers = _forwarded(forwarded), hops
        clients = {proxies.client(peer, hops) for hops in headers if hops}
        address = clients.pop() if len(clients) == 1 else peer
        if address is None:
            return None
        length = bits.v4 if address.version == 4 else bits.v6
        return str(ip_network((address, length), strict=False).network_address)

    return locate


def _forwarded(header: str) -> list[Address | None]:
    """Return the addresses of `Forwarded`, the nearest last; None where it is hidden or malformed.

    The header is read from the right. So a quotation mark of the client cannot hide the addresses
    that proxies appended, and a comma that a proxy quoted (`host="…"`) does not end its element.
    """
    if "for=" not in header.lower():  # it contains the protocol or the host alone
        return []
    hops: list[Address | None] = []
    end = comma = len(header)
    for _ in range(MOST_COMMAS):
        comma = header.rfind(",", 0, comma)
        if _ELEMENT.fullmatch(header, comma + 1, end):
            pairs = _PAIRS.findall(header, comma + 1, end)
            nodes = [value.strip('"') for name, value in pairs if name.lower() == "for"]
            node = _ESCAPE.sub(r"\1", nodes[0]) if len(nodes) == 1 else ""
            is_empty = not header[comma + 1 : end].strip(" \t")  # and then none (RFC 9110 5.6.1)
            hops += [] if is_empty else [parse_address(node)]
            end = comma
        if comma < 0 or len(hops) == MOST_HOPS:
            break
    return hops[::-1] or [None]


def is_silent(request: Request) -> bool:
    """Return whether the peer of a request may be a proxy that sends no addresses of its clients.

    Such a peer is on this host, in a private network or on a unix socket. Its clients cannot be
    distinguished by their addresses.
    """
    return not _forwarding_headers(request) and _INTERNAL.network_of(_peer(request)) is not None


def unnamed_proxy(request: Request, proxies: Proxies) -> Network | Literal["unix"] | None:
    """Return the network of a proxy that sends addresses, but is not in `proxies`; or None."""
    headers = _forwarding_headers(request)
    if not headers or proxies.hops:
        return None
    peer = _peer(request)
    # A server that reads the headers itself has replaced the peer with an address in them.
    is_client = peer and any(str(peer) in text for text in headers)
    return None if is_client or peer in proxies else _INTERNAL.network_of(peer)


def _forwarding_headers(request: Request) -> list[str]:
    return [header for name in ADDRESS_HEADERS if (header := request.header(name))]


def _peer(request: Request) -> Address | None:
    return parse_address(str(request.peer or ""))


def client_address(request: Request) -> str | None:
    """Return the address of a request's client in its normal form, or what is no address as it is.

    An IPv4 address may be written as an IPv6 address (`::ffff:192.0.2.1`), an IPv6 address with
    capitals, more zeros or the name of an interface, and both with a port. So an address without a
    colon is in its normal form.
    """
    address = request.address
    if not isinstance(address, str) or ":" not in address or len(address) > MAX_ADDRESS_LENGTH:
        return address
    return str(parse_address(address) or address)


def parse_address(text: str) -> Address | None:
    """Parse an address, with or without port and brackets; IPv4 in IPv6 becomes IPv4."""
    if match := _WITH_PORT.fullmatch(text):
        text = match[1] or match[2] or ""
    text = text.partition("%")[0]  # the name of an interface follows the sign
    try:
        # `ipaddress` takes longer to parse text.
        if ":" not in text:
            return IPv4Address(inet_pton(AF_INET, text))
        address = IPv6Address(inet_pton(AF_INET6, text))
    except (OSError, ValueError):
        return None
    return address.ipv4_mapped or address


def networks(address: str | None) -> tuple[int, ...]:
    """Return hashes of the networks of an address: of the host, and for IPv6 then of the site.

    A host is an IPv4 address or an IPv6 /64; a site is a /48. They are hashed because addresses
    must not be stored.
    """
    parsed = parse_address(address) if isinstance(address, str) and ":" in address else None
    if not isinstance(parsed, IPv6Address):
        return (hash(str(parsed or address)),)
    bits = int(parsed)
    return hash(("host", bits >> 64)), hash(("site", bits >> 80))
