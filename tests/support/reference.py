"""A slow reference implementation, computed from every sighting, for comparison with stores."""

Seen = list[tuple[float, str]]  # (when, who), newest first; of equal times the greater id first


class Reference:
    """All sightings ever, in a list that is read from end to end for each answer."""

    def __init__(self) -> None:
        self._sightings: list[tuple[float, str]] = []

    def saw(self, id: str, at: float) -> None:
        self._sightings.append((at, id))

    def online(self, now: float, window: float) -> Seen:
        """Each id with its newest sighting, if that is in the window."""
        newest: dict[str, float] = {}
        for at, id in self._sightings:
            if at > now - window:
                newest[id] = max(at, newest.get(id, at))
        return sorted(((at, id) for id, at in newest.items()), reverse=True)

    def touched(self, now: float, window: float) -> set[str]:
        """The ids seen in any minute of the clock that has a moment in common with the window."""
        return {id for at, id in self._sightings if at // 60 * 60 + 60 > now - window}

    def ids(self) -> list[str]:
        """Return the ids of all users that were ever seen."""
        return sorted({id for _, id in self._sightings})
