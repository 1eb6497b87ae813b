"""What is read off the machine while a run goes on."""

from typing import Protocol


class Meter(Protocol):
    """Takes readings of the machine while a run goes on."""

    def read(self, last: bool = False) -> None:
        """Takes a reading if the one before is old enough, or if this is the last chance."""
