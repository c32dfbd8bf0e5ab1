"""Requests of many people to a web server, from a process of its own, lighter than the server.

Prints how many were answered a second. The server must keep connections alive.
"""

import selectors
import socket
import sys
import time
from itertools import cycle

from .machine import AGENT, Child

CONNECTIONS = 16
BROWSERS = 50  # different User-Agents: fewer than the guests that one address may bring
BODY = b"hello"


def request(person: int) -> bytes:
    """What a browser of that person sends, or near it; every other one is a member."""
    member = f"X-Member: user{person}\r\n" if person % 2 else ""
    return (
        "GET / HTTP/1.1\r\nHost: www.example.com\r\n"
        f"User-Agent: {AGENT}/{person % BROWSERS}\r\nX-User: user{person}\r\n{member}"
        "Accept: text/html,application/xhtml+xml\r\nAccept-Language: en\r\n"
        "Accept-Encoding: gzip, deflate, br\r\nCookie: theme=dark; csrf=fedcba9876543210\r\n\r\n"
    ).encode()


def answered(port: int, seconds: float, people: int) -> float:
    """Return the requests answered a second, over connections with one request at a time."""
    requests = cycle([request(person) for person in range(people)])
    selector, read, count = selectors.EpollSelector(), dict[socket.socket, bytes](), 0
    for _ in range(CONNECTIONS):
        connection = socket.create_connection(("127.0.0.1", port))
        selector.register(connection, selectors.EVENT_READ, connection)
        connection.send(next(requests))
    began = time.perf_counter()
    while (passed := time.perf_counter() - began) < seconds:
        # It never sleeps: to wake it would be work of the server's process.
        for key, _ in selector.select(0.0):
            data = key.data.recv(65536)
            assert data, "the server closed a connection"
            answer = read.pop(key.data, b"") + data
            if answer.endswith(BODY):
                assert answer.startswith(b"HTTP/1.1 200"), answer
                count += 1
                key.data.send(next(requests))
            else:
                read[key.data] = answer
    return count / passed


def requests_per_second(port: int, seconds: float, people: int) -> float:
    """What a process with this load prints."""
    with Child(__name__, port, seconds, people) as child:
        return float(child.says())


if __name__ == "__main__":
    print(answered(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])))
