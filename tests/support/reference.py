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
