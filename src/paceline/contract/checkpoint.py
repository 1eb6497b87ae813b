"""What a process saves of a training and loads again: `runs/pauses/checkpoints.py` times it through this alone."""

from pathlib import Path
from typing import Protocol


class Checkpoint(Protocol):
    """The state of one process that a checkpoint needs: model and optimizer, whole or the part that falls to it."""

    def save(self, folder: Path) -> int:
        """Writes the state in place of an earlier one, on the disk when it returns; gives its bytes."""

    def load(self, folder: Path) -> None:
        """Puts what was last saved in the place of the state that is held."""

    def digest(self) -> str:
        """A text that is another one when any bit of the state is."""

    def erase(self) -> None:
        """Overwrites the state that is held, so that a load that does nothing cannot pass for one that works."""
