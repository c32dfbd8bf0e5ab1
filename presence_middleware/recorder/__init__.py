"""Takes sightings from visits and writes them, off the path of requests."""

from .recorder import Recorder, Stats, recorder_for
from .visit import Visit

__all__ = ["Recorder", "Stats", "Visit", "recorder_for"]
