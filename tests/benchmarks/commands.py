"""Redis commands for each request of a busy site.

    python -m tests.benchmarks.commands [--seconds 12] [--rate 1000] [--people 5000] [--workers 4]

gunicorn's workers answer people in turn, at a steady rate, and the server counts the commands
(INFO), from a moment when all workers are connected. What it counts has those in it that our
script runs; so what clients sent is told apart by name.
"""

import argparse
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import redis

from tests.support.servers import ROOT, WebServer, gunicorn

from .load import requests_per_second
from .machine import server

AIM = 0.03
CHAINS = {
    "users": "user=header:X-User",
    "users and guests": "user=header:X-Member, guest=visitor",
}
SCRIPT_ONLY = ("exists", "zcard", "zscore", "zadd")  # and an EXPIRE behind each ZADD


def calls(client: Any) -> Counter[str]:
    """How often each command ran since the last reset; not those of this benchmark."""
    found = client.info("commandstats").items()
    counted = Counter({name.removeprefix("cmdstat_"): stats["calls"] for name, stats in found})
    del counted["info"], counted["config|resetstat"]
    return counted


def in_script(counted: Counter[str]) -> int:
    """How many of them our script ran."""
    return sum(counted[name] for name in SCRIPT_ONLY) + counted["zadd"]


def measure(given: argparse.Namespace, chain: str) -> tuple[float, Counter[str]]:
    """Requests a second, and the commands."""
    options = ("--rate", str(given.rate), "--people", str(given.people))
    command = gunicorn("tests.benchmarks.sites:plain_wrapped()", given.workers)
    with (
        tempfile.TemporaryDirectory() as folder,
        server() as url,
        redis.Redis.from_url(url) as client,
    ):
        variables = {"PRESENCE_REDIS_URL": url, "PRESENCE_IDENTITY": chain}
        with WebServer(command, ROOT, Path(folder) / "log", **variables) as site:
            load = ("--connections", str(4 * given.workers), *options)
            while len(client.client_list()) <= given.workers:
                requests_per_second(site.port, 1, *load)
            client.config_resetstat()
            rate = requests_per_second(site.port, given.seconds, *load)
            return rate, calls(client)


def report(given: argparse.Namespace, name: str, rate: float, counted: Counter[str]) -> None:
    requests, every = rate * given.seconds, counted.total()
    sent = every - in_script(counted)
    print(f"{name}: {given.people} people, {rate:.0f} requests/s, {given.workers} workers")
    print(f"  sent by clients: {sent / requests:.4f} a request (aim {AIM})")
    print(f"  with what the script runs: {every / requests:.4f}")
    print("  " + ", ".join(f"{name} {n}" for name, n in counted.most_common()), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("--rate", type=float, default=1000, help="requests a second")
    parser.add_argument("--people", type=int, default=5000)
    parser.add_argument("--workers", type=int, default=4)
    given = parser.parse_args()
    for name, chain in CHAINS.items():
        report(given, name, *measure(given, chain))


if __name__ == "__main__":
    main()
