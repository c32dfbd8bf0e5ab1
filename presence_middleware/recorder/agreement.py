"""What the processes of a site agree on before one of them writes."""

import secrets

from ..backend import Backend
from ..connections.drivers import Driver
from ..errors import PresenceUnavailable
from ..identity.resolver import IdentityResolver
from ..stores import agree, keys
from .setup_hints import SetupHints

AGREED_EVERY = 10.0  # seconds; a Redis that restarted empty has lost the agreement


class Agreement:
    """The number of shards, the settings that all must share, and the key of hashed guests."""

    def __init__(self, backend: Backend, resolver: IdentityResolver, hints: SetupHints) -> None:
        self._backend, self._resolver, self._hints = backend, resolver, hints
        self._proposal = secrets.token_hex(32)
        self._agreed_at, self._generation = 0.0, -1

    def reach(self, driver: Driver) -> None:
        """Agree again if the last time is long ago, or if another server may answer since.

        Raises `PresenceUnavailable`, but not if the agreement holds while the node that stores it
        is away.
        """
        backend = self._backend
        now, generation = backend.clock.stamp(), backend.health.generation
        if now - self._agreed_at < AGREED_EVERY and generation == self._generation:
            return
        shared_key = self._resolver.shared_key
        try:
            driver.run(backend.layout.claim(now))
            in_force = driver.run(backend.shared_settings.publish(backend.clock.moment(now)))
            for name, value in in_force.differing.items():
                self._hints.warn("setting", name, value, topic=name)
            for kind, seconds in in_force.keep_seconds.items():
                backend.stores[kind].keep_longer(seconds)
            if shared_key is not None:
                key = keys.visitor_key(backend.settings.prefix)
                self._proposal = driver.run(agree(key, self._proposal, keys.VISITOR_KEY_TTL))
                shared_key.learn(self._proposal.encode())
        except PresenceUnavailable:
            has_key = shared_key is None or shared_key.key is not None
            if not (backend.layout.is_agreed and has_key):
                raise
        self._agreed_at, self._generation = now, generation
