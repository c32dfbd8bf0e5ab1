"""Where a request comes from: proxies, their headers, the address that is believed."""

import pytest

from presence_middleware import Settings
from presence_middleware.identity import addresses
from presence_middleware.identity.ids import normalize_id
from tests.support.asking import Request, ids

PROXY = "10.0.0.1"
NETWORKS = "10.0.0.0/8, fd00::/8"
Headers = tuple[tuple[str, str], ...]


def located(
    proxies: str, headers: Headers, peer: str | None = PROXY, prefix: str = "/32, /128"
) -> str | None:
    """The address that both views give, through these proxies."""
    locate = addresses.locator(addresses.parse_proxies(proxies), addresses.parse_prefix(prefix))
    request = Request([(name, value.encode("latin-1")) for name, value in headers], peer=peer)
    found = {locate(view) if locate else view.address for view in request.views()}
    assert len(found) == 1, found
    return found.pop()


def for_(value: str) -> Headers:
    return (("X-Forwarded-For", value),)


def forwarded(*values: str) -> Headers:
    return tuple(("Forwarded", value) for value in values)


NORMAL = {
    "192.0.2.7": [
        *("192.0.2.7", "192.0.2.7:4711", "192.0.2.7:_secret", "::ffff:192.0.2.7"),
        *("::ffff:c000:207", "::FFFF:c000:207", "[::ffff:192.0.2.7]:4711"),
    ],
    "2001:db8::7": [
        *("2001:db8::7", "2001:DB8:0:0::7", "[2001:db8::7]", "[2001:db8::7]:4711"),
        *("[2001:db8::7]:_p", "2001:db8:0:0:0:0:0:7"),  # a port may be hidden (RFC 7239 6.2)
    ],
    "fe80::1": ["fe80::1%eth0", "[fe80::1%25eth0]:80", "fe80::1%", "[fe80::1%eth0]:80"],
    "::": ["::"],
}
MALFORMED = [
    *("", "unknown", "_hidden", "localhost", "unix:", "/run/s", "testclient", "1", "3232235777"),
    *("192.0.2", "192.0.2.7.8", "192.0.2.256", "0192.0.2.7", "192.0.2.7:", "192.0.2.7 :80"),
    *("2001:db8::7::", "[2001:db8::7", "2001:db8::7]", "[2001:db8::7]80", "[]", "[]:80", "%eth0"),
    *("192.0.2.7/32", "\u0661.1.1.1", "\u0661.1.1.1:80", "192.0.2.7\x00", "\xff", "0x7f.1"),
    "x" * 9999,
]


@pytest.mark.parametrize("address", NORMAL)
def test_an_address_is_read_as_proxies_write_it_and_is_one_guest(address: str) -> None:
    for text in NORMAL[address]:
        assert str(addresses.parse_address(text)) == address, text
    for source in ("ip", "visitor", "ip:raw"):
        settings = Settings.from_env(
            {}, identity=f"guest={source}", secret="0123456789abcdef", bots="off", enabled=False
        )
        (found,) = {ids(settings, Request(peer=text)) for text in NORMAL[address]}
        assert found not in {None, ids(settings, Request(peer="192.0.2.77"))}


def test_malformed_addresses_are_rejected_and_a_peer_that_is_none_is_left_unchanged() -> None:
    settings = Settings.from_env({}, identity="guest=ip:raw", bots="off", enabled=False)
    assert str(addresses.parse_address("[192.0.2.7]")) == "192.0.2.7"  # as no server writes it
    for text in MALFORMED:
        assert addresses.parse_address(text) is None, text
    for text in ("testclient", "unix:", "unix:/run/s", "a:b", ":", "1:2" * 99):
        assert ids(settings, Request(peer=text)) == normalize_id(text)


FORWARDED = forwarded("for=6.6.6.6")
CASES_OF_COUNTS = [
    *((none, headers, PROXY) for none in ("", "0") for headers in (for_("6.6.6.6"), FORWARDED)),
    # Of X-Forwarded-For, the nearest proxy wrote the last.
    ("2", for_("6.6.6.6, 198.51.100.7, 10.0.0.2"), "198.51.100.7"),
    ("2", for_("198.51.100.7"), PROXY),  # it did not come through both
    ("1", for_(" , ,"), PROXY),
    ("1", for_("6.6.6.6,\t[2001:db8::7]:4711 "), "2001:db8::7"),
    ("1", for_("6.6.6.6, unknown"), PROXY),
    ("1", for_('"6.6.6.6, 198.51.100.7'), "198.51.100.7"),
    ("2", (*for_("6.6.6.6, 198.51.100.7"), *for_("10.0.0.2")), "198.51.100.7"),
    ("32", for_(", ".join(["198.51.100.7", *["10.0.0.2"] * 31])), "198.51.100.7"),
    ("32", for_(", ".join(["6.6.6.6", "198.51.100.7", *["10.0.0.2"] * 31])), "198.51.100.7"),
    # Forwarded, by the grammar of RFC 7239 4.
    ("1", forwarded("for=198.51.100.7"), "198.51.100.7"),
    ("1", forwarded('for="198.51.100.7:4711"'), "198.51.100.7"),
    ("1", forwarded('for="[2001:db8::7]:4711";by=10.0.0.1'), "2001:db8::7"),
    ("1", forwarded("by=10.0.0.1;proto=https;for=198.51.100.7;host=a"), "198.51.100.7"),
    ("2", forwarded("for=6.6.6.6, for=198.51.100.7,for=10.0.0.2;by=10.0.0.1"), "198.51.100.7"),
    ("1", forwarded("for=6.6.6.6, for=unknown"), PROXY),
    ("1", forwarded('for=6.6.6.6, for="_SEVKISEK"'), PROXY),
    ("2", forwarded("for=_hidden, for=198.51.100.7, for=unknown"), "198.51.100.7"),
    ("1", forwarded("proto=https;by=6.6.6.6"), PROXY),
    ("1", forwarded("xfor=6.6.6.6"), PROXY),
    *(("1", forwarded(f"for=198.51.100.7{end}"), "198.51.100.7") for end in (",", ", \t,,")),
    ("2", forwarded("for=198.51.100.7, , for=10.0.0.2"), "198.51.100.7"),
    # A value in quotes is one value, whatever stands in it.
    ("1", forwarded('for=198.51.100.7;host="a\\";for=6.6.6.6;x=\\""'), "198.51.100.7"),
    ("2", forwarded('for=198.51.100.7;host=",for=6.6.6.6,"', "for=10.0.0.2"), "198.51.100.7"),
    # Both, which only agree where they name one client.
    ("1", (*for_("198.51.100.7"), *forwarded("for=198.51.100.7")), "198.51.100.7"),
    ("1", (*for_("198.51.100.7"), *forwarded("for=6.6.6.6")), PROXY),
    ("1", (*for_(""), *forwarded("for=198.51.100.7")), "198.51.100.7"),
    ("1", (*for_("198.51.100.7"), *forwarded("for=unknown")), PROXY),
]

CASES_OF_NETWORKS = [
    (NETWORKS, for_("6.6.6.6, 2001:db8::7, fd00::3, 10.0.0.2"), "2001:db8::7"),
    (NETWORKS, for_("6.6.6.6, 198.51.100.7, ::ffff:10.0.0.2"), "198.51.100.7"),
    (NETWORKS, for_("10.9.9.9, 10.0.0.2"), "10.9.9.9"),  # a client from inside
    (NETWORKS, for_("6.6.6.6, unknown, 10.0.0.2"), "10.0.0.2"),  # the last that is known
    (NETWORKS, for_("6.6.6.6, , 10.0.0.2"), "6.6.6.6"),  # RFC 9110 5.6.1: empty ones are none
    (NETWORKS, forwarded("for=6.6.6.6, , for=10.0.0.2"), "6.6.6.6"),
    (NETWORKS, forwarded('for=6.6.6.6, for="[fd00::3]", for=10.0.0.2'), "6.6.6.6"),
    (NETWORKS, forwarded('for=6.6.6.6, for=198.51.100.7, for="[fd00::3]:80"'), "198.51.100.7"),
    (NETWORKS, forwarded("for=6.6.6.6, for=_hidden, for=10.0.0.2"), "10.0.0.2"),
    (NETWORKS, forwarded('for=198.51.100.7;host="a;for=6.6.6.6", for=10.0.0.2'), "198.51.100.7"),
    (NETWORKS, (*for_("198.51.100.7"), *forwarded("for=6.6.6.6")), PROXY),
    ("192.0.2.0/24", for_("6.6.6.6"), PROXY),  # whose peer is none of these
    ("unix", for_("6.6.6.6"), PROXY),
    # 32 addresses are read, and 64 commas.
    (NETWORKS, for_(", ".join(["6.6.6.6", *["10.0.0.2"] * 32])), "10.0.0.2"),
    (NETWORKS, forwarded(", ".join(["for=6.6.6.6", *["for=10.0.0.2"] * 32])), "10.0.0.2"),
    (NETWORKS, forwarded(f'for=6.6.6.6, for=10.0.0.2;host="{64 * ","}"'), PROXY),
]
CHAIN = for_("6.6.6.6, 198.51.100.7, 10.0.0.2")
# Proxies, headers, a peer, the address.
CASES_OF_PEERS = [
    (NETWORKS, for_("6.6.6.6"), "::ffff:10.0.0.1", "6.6.6.6"),
    (f"unix, {NETWORKS}", CHAIN, None, "198.51.100.7"),
    ("unix", CHAIN, None, "10.0.0.2"),
    *(
        (proxies, headers, peer, address)
        for proxies, address in (
            *(("1", "198.51.100.7"), ("unix", "198.51.100.7")),
            *((f"unix, {NETWORKS}", "198.51.100.7"), (NETWORKS, None), ("2", None), ("", None)),
        )
        for headers in (for_("198.51.100.7"), forwarded("for=198.51.100.7"))
        for peer in (None, "")  # as uvicorn and as gunicorn tell of a unix socket
    ),
]


@pytest.mark.parametrize(("proxies", "headers", "address"), CASES_OF_COUNTS + CASES_OF_NETWORKS)
def test_headers_are_read_from_the_right(proxies: str, headers: Headers, address: str) -> None:
    assert located(proxies, headers) == address


@pytest.mark.parametrize(("proxies", "headers", "peer", "address"), CASES_OF_PEERS)
def test_a_peer_is_trusted_over_ipv4_ipv6_and_a_unix_socket(
    proxies: str, headers: Headers, peer: str | None, address: str | None
) -> None:
    assert located(proxies, headers, peer) == address


@pytest.mark.parametrize(
    ("prefix", "address", "kept"),
    [
        ("/24, /56", "198.51.100.255", "198.51.100.0"),
        ("/24, /56", "::ffff:198.51.100.7", "198.51.100.0"),
        ("/24, /56", "2001:db8:1:2ff:3::7", "2001:db8:1:200::"),
        ("/32, /64", "2001:db8:1:2ff:3::7", "2001:db8:1:2ff::"),
        ("/25, /128", "198.51.100.255", "198.51.100.128"),
        ("/0, /0", "198.51.100.7", "0.0.0.0"),
        ("/0, /0", "2001:db8::7", "::"),
    ],
)
def test_addresses_are_cut_to_the_prefix(prefix: str, address: str, kept: str) -> None:
    assert located("", (), address, prefix) == kept
    assert located("1", for_(f"6.6.6.6, {address}"), PROXY, prefix) == kept
    assert located(NETWORKS, for_(f"6.6.6.6, {address}"), PROXY, prefix) == kept


def test_the_prefix_cuts_client_addresses_but_never_trusted_proxies() -> None:
    """The neighbour of a trusted proxy is not trusted."""
    assert located("10.0.0.2", for_("198.51.100.7"), "10.0.0.3", "/24, /56") == "10.0.0.0"
