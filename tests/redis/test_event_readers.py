"""Iterators over events: where they resume, how long they wait, and when they end."""

import pytest

from presence_middleware import Presence, QueryError, Settings


@pytest.fixture
def site(variables: dict[str, str]) -> Settings:
    return Settings.from_env({**variables, "PRESENCE_EVENTS": "user"})


@pytest.mark.parametrize(
    "cursor", ["", "0", "1-1.x", "99999999999999999999-0.1", "1.1,1.1", "\u0661.1"]
)
def test_a_cursor_that_is_none_is_refused(site: Settings, cursor: str) -> None:
    with pytest.raises(QueryError, match="pass the cursor of an event"):
        Presence(site).events(after=cursor)
