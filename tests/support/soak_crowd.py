"""The visitors of test_soak_site.py, in a process of their own.

Some stay for the whole time. The others come at a rate, read for some seconds, and log out, close
the page or vanish. A line on standard output says that nobody comes any more; then those who stay
go on until standard input ends, and a last line has the figures as JSON.
"""

import asyncio
import json
import random
import sys
import time
from collections import Counter, deque
from contextlib import suppress
from typing import Any

STAYERS = [f"stays{number}" for number in range(100)]
PULSE_EVERY = 8.0  # seconds, of those who stay
READS = (1.0, 6.0)  # seconds for which a visitor reads
CONNECTIONS = 24  # to each server
ROOMS = 40
OVER = "nobody comes any more"
CONTROLLED = 0.2  # of the visitors, who also ask the site without presence
TICK = 0.005  # seconds


class Crowd:
    """Visitors of some servers, and what they met."""

    def __init__(self, control: int, ports: list[int]) -> None:
        """`control` is the port of a site without presence, which shows what the machine does."""
        self.control, self.ports = control, ports
        self.waits: list[float] = []
        """How long each page took, in seconds without those in which this process stood still."""
        self.control_waits: list[float] = []
        self.statuses: Counter[str] = Counter()
        self.came: list[tuple[float, str]] = []
        self._free: dict[int, list[Any]] = {port: [] for port in (control, *ports)}
        self._turns = {port: asyncio.Semaphore(CONNECTIONS) for port in self._free}
        self._stalls: deque[tuple[float, float]] = deque(maxlen=1000)

    async def run(self, rate: float, seconds: float) -> None:
        witness = asyncio.create_task(self._witness())
        staying = [asyncio.create_task(self._stay(id)) for id in STAYERS]
        visits: set[asyncio.Task[None]] = set()
        began, number = time.monotonic(), 0
        while (elapsed := time.monotonic() - began) < seconds:
            while number < elapsed * rate:
                number += 1
                visit = asyncio.create_task(self._visit(f"p{number}"))
                visits.add(visit)
                visit.add_done_callback(visits.discard)
            await asyncio.sleep(TICK)
        await asyncio.gather(*visits)
        print(OVER, flush=True)
        await asyncio.to_thread(sys.stdin.read)
        for task in (witness, *staying):
            task.cancel()

    async def _visit(self, id: str) -> None:
        port = random.choice(self.ports)
        if random.random() < CONTROLLED:
            await self._page(self.control, "GET", "/", id)
        await self._page(port, "GET", f"/t/{random.randrange(ROOMS)}", id)
        self.came.append((time.time(), id))
        await asyncio.sleep(random.uniform(*READS))
        page = f"/t/{random.randrange(ROOMS)}"
        await self._page(port, "POST", f"/pulse?presence=here:{page}", id)
        await asyncio.sleep(random.uniform(*READS))
        dice = random.random()
        if dice < 0.5:
            await self._page(random.choice(self.ports), "GET", "/logout", id)
        elif dice < 0.8:
            await self._page(port, "POST", "/pulse?presence=bye", id)

    async def _stay(self, id: str) -> None:
        await asyncio.sleep(random.uniform(0, 1))
        while True:
            port = random.choice(self.ports)
            await self._page(port, "POST", "/pulse?presence=here:/t/0", id)
            await asyncio.sleep(PULSE_EVERY)

    async def _page(self, port: int, method: str, path: str, id: str) -> None:
        """Ask for a page, and note how long that took."""
        head = f"{method} {path} HTTP/1.1\r\nHost: site\r\nX-User: {id}\r\n"
        head += "Sec-Fetch-Site: same-origin\r\nContent-Length: 0\r\n\r\n"
        async with self._turns[port]:
            free = self._free[port]
            while free and free[-1][0].at_eof():
                free.pop()  # the server has closed it, because it was not used for long
            streams = free.pop() if free else await asyncio.open_connection("127.0.0.1", port)
            began = time.monotonic()
            try:
                streams[1].write(head.encode())
                answer = await streams[0].readuntil(b"\r\n\r\n")
                now = time.monotonic()
                length = answer.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]
                if length:
                    await streams[0].readexactly(int(length))
            except (OSError, asyncio.IncompleteReadError) as error:
                self.statuses[type(error).__name__] += 1
                return
            free.append(streams)
        self.statuses[answer[9:12].decode()] += 1
        wait = now - began - self._stalled(began, now)
        if port == self.control:
            self.control_waits.append(wait)
            return
        self.waits.append(wait)

    def _stalled(self, began: float, ended: float) -> float:
        """Return for how long this process itself stood still in a time."""
        return sum(
            min(at, ended) - max(at - lag, began)
            for at, lag in self._stalls
            if at > began and at - lag < ended
        )

    async def _witness(self) -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(TICK)
            now = time.monotonic()
            if now - before > 4 * TICK:
                self._stalls.append((now, now - before - TICK))


def shares(waits: list[float]) -> dict[str, float]:
    """Return the wait that a share of the pages did not exceed, by the name of the share."""
    waits.sort()
    parts = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "worst": 1.0}
    return {
        name: waits[min(int(len(waits) * part), len(waits) - 1)] for name, part in parts.items()
    }


def main(rate: str, seconds: str, control: str, *ports: str) -> None:
    crowd = Crowd(int(control), [int(port) for port in ports])
    with suppress(asyncio.CancelledError):
        asyncio.run(crowd.run(float(rate), float(seconds)))
    figures = {
        "statuses": crowd.statuses,
        "pages": len(crowd.waits),
        "waits": shares(crowd.waits),
        "control": shares(crowd.control_waits),
        "came": crowd.came,
    }
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
