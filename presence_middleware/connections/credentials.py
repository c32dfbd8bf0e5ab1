"""`?credential_provider=module:object` of a URL: credentials that change, such as tokens of IAM.

Imports redis-py.
"""

from importlib import import_module
from typing import Any

from redis import AuthenticationError, CredentialProvider

from .loops import in_thread

# That of redis-py calls `get_credentials`, which may wait for a service, in the event loop.
_INHERITED = getattr(CredentialProvider, "get_credentials_async", None)


class ImportedCredentials(CredentialProvider):
    """The credentials of an object that the site has; each new connection asks it again.

    The object has the methods of redis-py's `CredentialProvider`, or is a class or function that
    returns such an object. It is imported when the first connection opens. Whatever goes wrong is
    raised as `redis.AuthenticationError`, without the text of other errors: it may show a token.
    """

    def __init__(self, path: str) -> None:
        """Take `path`, such as `shop.iam:provider`. Imports nothing."""
        self._path = path
        self._provider: Any = None

    def get_credentials(self) -> Any:
        """Return the password, or the user and the password, in a tuple."""
        try:
            return self._found().get_credentials()
        except Exception as error:
            raise self._failure(error) from None

    async def get_credentials_async(self) -> Any:
        """Return the same without blocking the event loop."""
        try:
            provider = await in_thread(self._found)
            if getattr(type(provider), "get_credentials_async", _INHERITED) is not _INHERITED:
                return await provider.get_credentials_async()
            return await in_thread(provider.get_credentials)
        except Exception as error:
            raise self._failure(error) from None

    def _found(self) -> Any:
        if self._provider is None:
            module, _, name = self._path.partition(":")
            provider = getattr(import_module(module), name)
            is_made = isinstance(provider, type) or not hasattr(provider, "get_credentials")
            self._provider = provider() if is_made else provider
        return self._provider

    def _failure(self, error: Exception) -> AuthenticationError:
        return AuthenticationError(
            f"credential_provider={self._path} of PRESENCE_REDIS_URL raised {type(error).__name__}"
        )
