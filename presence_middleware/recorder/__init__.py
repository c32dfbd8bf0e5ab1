"""Takes sightings from visits and writes them, off the requests' path."""

from .recorder import Recorder, Stats
from .registry import recorder_for
from .visit import Visit

__all__ = ["Recorder", "Stats", "Visit", "recorder_for"]
