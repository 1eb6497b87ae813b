"""Meters that read the machine during a run."""

from typing import Protocol


class Meter(Protocol):
    """Takes readings of the machine while a run goes on."""

    def read(self, last: bool = False) -> None:
        """Takes a reading if the previous one is old enough, or if this is the last chance."""
