"""Hundreds of greenlets that read at once, for test_many_readers.py.

python -m tests.support.crowded_site
"""

from gevent import monkey  # type: ignore[import-untyped]

monkey.patch_all()

import logging  # noqa: E402
from collections import Counter  # noqa: E402

import gevent  # noqa: E402

from presence_middleware import PresenceUnavailable  # noqa: E402
from presence_middleware.wsgi import PresenceMiddleware, WsgiVisit  # noqa: E402

REQUESTS = 400


def main() -> None:
    """Print how the requests ended, and how many lines the log has."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("presence_middleware").addHandler(handler)
    recorder = PresenceMiddleware(lambda *_: []).recorder

    def ask(number: int) -> str:
        visit = WsgiVisit(recorder, {"REMOTE_USER": f"user{number}"})
        try:
            visit.count()
        except PresenceUnavailable as error:
            return str(error)
        finally:
            visit.end()
        return "answered"

    asked = [gevent.spawn(ask, number) for number in range(REQUESTS)]
    gevent.joinall(asked)
    recorder.close()
    print(dict(Counter(each.value for each in asked)), lines)


if __name__ == "__main__":
    main()
