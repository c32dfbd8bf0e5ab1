"""What is found out about a request as it arrives: from where, who, and whether it counts."""

import time
from collections.abc import Callable

from ..identity import Chain, Guests, SecretHasher, SharedHasher, View, locator
from ..settings import Settings
from .notices import Notices
from .unseen import Unseen


class Reception:
    """What the settings of a site say about arriving requests. No I/O."""

    def __init__(
        self,
        settings: Settings,
        notices: Notices,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`monotonic` is the clock of the budget that new User-Agents have.

        Raises `SettingsError` if a function that `PRESENCE_IDENTITY` names is not there.
        """
        self.guests = Guests(settings.window, settings.trusted_proxies)
        hasher = (
            SecretHasher(settings.secret)
            if settings.secret
            else SharedHasher(self.guests.forget_ids)
        )
        hashes = any(link.hashed for link in settings.identity)
        self.shared = hasher if hashes and isinstance(hasher, SharedHasher) else None
        """The hasher, where it needs the key that all processes share."""
        self.chain = Chain(
            settings.identity,
            hasher,
            settings.session_secret,
            settings.bots,
            self.guests,
            monotonic=monotonic,
        )
        self._locate = locator(settings.trusted_proxies, settings.ip_prefix)
        self._is_unseen = Unseen(*settings.exclude, *settings.passive)
        self._enabled = settings.enabled
        self._notices = notices

    def receive(self, view: View, now: float) -> None:
        """Finds the address of a request's client, and whether it counts as a visit."""
        try:
            if self._locate:
                view.address = self._locate(view)
            if not self._enabled or self._is_unseen(view):
                view.counts = False
            elif now >= self._notices.look_at:
                self._notices.look(view, now)
        except Exception as error:  # an environ or scope that is none
            self._notices.unreadable(error)
            view.counts = False
