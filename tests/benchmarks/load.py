"""Requests of many people to a web server, from a process of its own, lighter than the server.

Prints how many were answered a second. Connections are kept alive where the server does so.
"""

import selectors
import socket
import subprocess
import sys
import time
from itertools import cycle

CONNECTIONS = 16
BROWSERS = 50  # different User-Agents: fewer than the guests that one address may bring
AGENT = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140 Safari"
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


class Load:
    """Some connections, each with one request at a time."""

    def __init__(self, port: int, people: int) -> None:
        self.answered = 0
        self._address = ("127.0.0.1", port)
        self._requests = cycle([request(person) for person in range(people)])
        self._selector = selectors.EpollSelector()
        self._read: dict[socket.socket, bytes] = {}
        self._idle = [self._connect() for _ in range(CONNECTIONS)]

    def run(self, seconds: float) -> float:
        """Requests answered a second."""
        began = time.perf_counter()
        while (passed := time.perf_counter() - began) < seconds:
            while self._idle:
                self._send(self._idle.pop())
            # It never sleeps: to wake it would be work of the server's process.
            for key, _ in self._selector.select(0.0):
                assert isinstance(key.fileobj, socket.socket)
                self._receive(key.fileobj)
        return self.answered / passed

    def _connect(self) -> socket.socket:
        connection = socket.create_connection(self._address)
        self._selector.register(connection, selectors.EVENT_READ)
        return connection

    def _send(self, connection: socket.socket) -> None:
        self._read[connection] = b""
        connection.send(next(self._requests))

    def _receive(self, connection: socket.socket) -> None:
        data = connection.recv(65536)
        answer = self._read[connection] = self._read.get(connection, b"") + data
        if answer.endswith(BODY):
            assert answer.startswith(b"HTTP/1.1 200"), answer
            self.answered += 1
        elif data:
            return
        if not data or b"onnection: close" in answer:
            del self._read[connection]
            self._selector.unregister(connection)
            connection.close()
            connection = self._connect()
        self._idle.append(connection)


def requests_per_second(port: int, seconds: float, people: int) -> float:
    """What a process with this load prints."""
    command = [sys.executable, "-m", __name__, str(port), str(seconds), str(people)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


if __name__ == "__main__":
    port, seconds, people = sys.argv[1:]
    print(Load(int(port), int(people)).run(float(seconds)))
