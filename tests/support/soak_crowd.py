"""The visitors of test_soak_site.py, in a process of their own.

Some stay for the whole time. The others come at a rate, read for some seconds, and log out, close
the page or vanish. A line on standard output says that nobody comes any more; then those who stay
go on until standard input ends, and a last line has the statuses and the waits as JSON.
"""

import asyncio
import json
import random
import sys
import time
from collections import Counter
from contextlib import suppress
from typing import Any

STAYERS = [f"stays{number}" for number in range(100)]
PULSE_EVERY = 8.0  # seconds, of those who stay
READS = (1.0, 6.0)  # seconds for which a visitor reads
CONNECTIONS = 24  # to each server
OVER = "nobody comes any more"


class Crowd:
    """Visitors of some servers, and what they met."""

    def __init__(self, ports: list[int]) -> None:
        self.waits: list[float] = []
        """How many seconds each page took."""
        self.statuses: Counter[str] = Counter()
        self._free: dict[int, list[Any]] = {port: [] for port in ports}
        self._turns = {port: asyncio.Semaphore(CONNECTIONS) for port in ports}

    async def run(self, rate: float, seconds: float) -> None:
        staying = [asyncio.create_task(self._stay(id)) for id in STAYERS]
        visits = list[asyncio.Task[None]]()
        began = time.monotonic()
        while (elapsed := time.monotonic() - began) < seconds:
            while len(visits) < elapsed * rate:
                visits.append(asyncio.create_task(self._visit(f"p{len(visits)}")))
            await asyncio.sleep(0.005)
        await asyncio.gather(*visits)
        print(OVER, flush=True)
        await asyncio.to_thread(sys.stdin.read)
        for task in staying:
            task.cancel()

    async def _visit(self, id: str) -> None:
        await self._page("GET", f"/t/{random.randrange(40)}", id)
        await asyncio.sleep(random.uniform(*READS))
        await self._page("POST", f"/pulse?presence=here:/t/{random.randrange(40)}", id)
        await asyncio.sleep(random.uniform(*READS))
        dice = random.random()
        if dice < 0.5:
            await self._page("GET", "/logout", id)
        elif dice < 0.8:
            await self._page("POST", "/pulse?presence=bye", id)

    async def _stay(self, id: str) -> None:
        await asyncio.sleep(random.uniform(0, 1))
        while True:
            await self._page("POST", "/pulse?presence=here:/t/0", id)
            await asyncio.sleep(PULSE_EVERY)

    async def _page(self, method: str, path: str, id: str) -> None:
        """Ask a server for a page, and note how long that took."""
        port = random.choice([*self._free])
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
                self.waits.append(time.monotonic() - began)
                length = answer.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]
                await streams[0].readexactly(int(length or 0))
            except (OSError, asyncio.IncompleteReadError) as error:
                self.statuses[type(error).__name__] += 1
                return
            free.append(streams)
        self.statuses[answer[9:12].decode()] += 1


def main(rate: str, seconds: str, *ports: str) -> None:
    crowd = Crowd([int(port) for port in ports])
    with suppress(asyncio.CancelledError):
        asyncio.run(crowd.run(float(rate), float(seconds)))
    print(json.dumps([crowd.statuses, sorted(crowd.waits)]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
