"""The function of a site that hides one of its users."""

HIDDEN = "42"


def is_hidden(id: str) -> bool:
    return id in (HIDDEN, f"user-{HIDDEN}")  # by primary key, and by username


def fails(id: str) -> bool:
    raise ValueError(id)


async def asynchronous(id: str) -> bool:
    return True
