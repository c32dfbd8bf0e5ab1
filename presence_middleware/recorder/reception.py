"""What is found out about a request as it arrives: from where, who, and whether it counts."""

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
        now: Callable[[], float],
        refused: Callable[[], None],
        notices: Notices,
    ) -> None:
        """`refused` hears of every guest who is too many.

        Raises `SettingsError` if a function that `PRESENCE_IDENTITY` names is not there.
        """
        guests = Guests(settings.window, now, refused)
        hasher = SecretHasher(settings.secret) if settings.secret else SharedHasher(guests.forget)
        hashes = any(link.hashed for link in settings.identity)
        self.shared = hasher if hashes and isinstance(hasher, SharedHasher) else None
        """The hasher, where it needs the key that all processes share."""
        self.chain = Chain(
            settings.identity, hasher, settings.session_secret, settings.bots, guests
        )
        self._locate = locator(settings.trusted_proxies, settings.ip_prefix)
        self._is_unseen = Unseen(*settings.exclude, *settings.passive)
        self._enabled = settings.enabled
        self._notices = notices

    def counts(self, view: View, now: float) -> bool:
        """Whether a request counts as a visit; finds its client's address in any case."""
        try:
            if self._locate:
                view.address = self._locate(view)
            if not self._enabled or self._is_unseen(view):
                return False
            if now >= self._notices.look_at:
                self._notices.look(view, now)
        except Exception as error:  # an environ or scope that is none
            self._notices.unreadable(error)
            return False
        return True
