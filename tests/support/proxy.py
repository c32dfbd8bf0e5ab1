"""A TCP port in front of a server, which a test makes slow, silent, false or unreachable."""

import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

BYTES = 1 << 14
HOST = "127.0.0.1"

_COMMAND = re.compile(rb"(?:^|\r\n)\*\d+\r\n")  # where one begins (RESP)


class Proxy:
    """Forwards connections to `port` until it is told to fail, and counts them."""

    def __init__(self, server: Path | tuple[str, int]) -> None:
        """`server` is the unix socket or the address of the one behind; of new connections, if it
        is changed.
        """
        self.server = server
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        self.connections = 0
        self.delay = 0.0
        """Seconds that each reply takes longer."""
        self.drip: float | None = None
        """Seconds between two bytes of a reply; None sends it whole."""
        self.answer: bytes | None = None
        """What each command is answered with, instead of by the server; empty: nothing ever is."""
        self.hangs_up = False
        """Whether the connection ends after that answer."""
        _in_thread(self._accept, self._listener)

    def refuse(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # else `accept` would go on
        self._listener.close()
        self.cut()

    def listen(self) -> None:
        """At the same port, after `refuse` or `vanish`."""
        self.refuse()
        self._listener = socket.create_server((HOST, self.port))
        _in_thread(self._accept, self._listener)

    def vanish(self) -> None:
        """Leave a full queue that is never served, so new connections wait for ever."""
        self.refuse()
        self._listener = socket.create_server((HOST, self.port), backlog=0)
        for _ in range(3):
            waiting = socket.socket()
            waiting.setblocking(False)
            waiting.connect_ex((HOST, self.port))
            self._open.append(waiting)

    def cut(self) -> None:
        while self._open:
            with contextlib.suppress(OSError):
                self._open[-1].shutdown(socket.SHUT_RDWR)
            self._open.pop().close()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                self.connections += 1
                self._open.append(client)
                _in_thread(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        behind = self.server
        family = socket.AF_UNIX if isinstance(behind, Path) else socket.AF_INET
        with client, socket.socket(family) as server, contextlib.suppress(OSError):
            server.connect(str(behind) if isinstance(behind, Path) else behind)
            _in_thread(self._reply, server, client)
            try:
                self._hand_on(client, server)
            finally:
                server.shutdown(socket.SHUT_RDWR)  # else the thread would wait for ever

    def _hand_on(self, client: socket.socket, server: socket.socket) -> None:
        while asked := client.recv(BYTES):
            if self.answer is None:
                server.sendall(asked)
                continue
            client.sendall(self.answer * len(_COMMAND.findall(asked)))
            if self.hangs_up:
                break

    def _reply(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while reply := server.recv(BYTES):
                time.sleep(self.delay)
                # The test may set it to None meanwhile.
                while reply and (drip := self.drip) is not None:
                    client.sendall(reply[:1])
                    reply = reply[1:]
                    time.sleep(drip)
                client.sendall(reply)
            client.shutdown(socket.SHUT_RDWR)


def _in_thread(work: Callable[..., None], *given: socket.socket) -> None:
    threading.Thread(target=work, args=given, name="proxy", daemon=True).start()
