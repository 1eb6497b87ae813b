"""Progress of a run as its workers note it, step by step, in files that outlive a worker that is killed."""

import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter_ns

from paceline.contract.job import Share
from paceline.record import Progress
from paceline.runs.folder import RunFolder
from paceline.runs.wire import Message

_PATTERN = "progress-*.jsonl"
_CLAIM = "claim"


class Note(Message):
    """One step, or a worker's part of it, at a moment of the clock that all processes of a machine share."""

    at: int
    step: int
    part: int
    samples: int
    loss: float
    trained_by: tuple[int, ...]


class ProgressNotes:
    """A worker's side: one line for each step. What the kernel has is kept, whatever becomes of the process."""

    def __init__(self, folder: RunFolder, rank: int) -> None:
        self._file = folder.path / f"progress-{rank}-{os.getpid()}.jsonl"

    def add(self, step: int, loss: float, share: Share) -> None:
        """Notes that a step, counted from 1, has been made, or a share of it."""
        note = Note(
            at=perf_counter_ns(), step=step, part=share.part, samples=share.samples, loss=loss, trained_by=share.workers
        )
        with self._file.open("a") as file:
            file.write(note.model_dump_json() + "\n")


class LostClaimError(Exception):
    """Another group of workers has begun to train the same run."""


class Claim:
    """The right to train a run, which a new group takes from the one before, whatever that one believes.

    Agents that take each other for lost would otherwise train side by side, each over the other's checkpoints.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder, self._holder = folder, str(os.getpid())
        folder.publish(_CLAIM, 0, self._holder)

    def check(self) -> None:
        """Raises where another group has the run now."""
        if self._folder.read(_CLAIM, 0) != self._holder:
            raise LostClaimError("another group of workers has begun to train this run; this one has to stop")


@dataclass
class ProgressReader:
    """The launcher's side: reads what has been added since it last looked."""

    folder: Path
    notes: list[Note] = field(default_factory=list)
    reached: int = 0
    _read: dict[Path, int] = field(default_factory=dict)

    def look(self) -> int:
        """The furthest step that any worker has made."""
        for file in sorted(self.folder.glob(_PATTERN)):
            with file.open("rb") as opened:
                opened.seek(self._read.get(file, 0))
                text = opened.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._read[file] = self._read.get(file, 0) + len(whole)
            self.notes += [Note.model_validate_json(line) for line in whole.splitlines()]
        self.reached = max((note.step for note in self.notes), default=0)
        return self.reached

    def progress(self, launched: int) -> tuple[Progress, ...]:
        """All notes in the order of time, in seconds from the launch."""
        return tuple(
            Progress(
                seconds=(note.at - launched) / 1e9, step=note.step, part=note.part, samples=note.samples,
                loss=note.loss if math.isfinite(note.loss) else None, trained_by=note.trained_by,
            )
            for note in sorted(self.notes, key=lambda note: note.at)
        )  # fmt: skip


def first_step(folder: RunFolder, rank: int) -> int:
    """The step from which a worker trains: the furthest that others have reached, where it comes in another's place."""
    predecessors = list(folder.path.glob(f"progress-{rank}-*.jsonl"))
    return ProgressReader(folder.path).look() if predecessors else 0
