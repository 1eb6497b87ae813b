"""Checkpoints in the middle of a run: when one is due, what it took, and whether what was loaded is what was held."""

from dataclasses import dataclass, field
from pathlib import Path

from paceline.contract.job import Job
from paceline.record import RankCheckpoint, Save
from paceline.runs.pauses.standing_still import between_steps


@dataclass
class Saver:
    """Saves a job's state every so many steps of the run, and once more at its end, when it is loaded again.

    All processes stand still meanwhile, so that every rank leaves the same stretch out of the time of its steps.
    """

    job: Job
    every: int
    folder: Path
    saves: list[Save] = field(default_factory=list)
    # Since the beginning of the run.
    steps: int = 0
    cpu_seconds: float = 0.0
    # It never ends a run.
    is_done: bool = False

    def after_steps(self, count: int) -> int:
        """Counts steps and saves where one of them was due; gives the nanoseconds that this took."""
        before, self.steps = self.steps, self.steps + count
        if before // self.every == self.steps // self.every:
            return 0
        nanoseconds, cpu_seconds = between_steps(self.job, self._save)
        self.cpu_seconds += cpu_seconds
        return nanoseconds

    def _save(self) -> None:
        self.job.align()
        checkpoint, began = self.job.checkpoint(), self.job.clock()
        if checkpoint is not None:
            saved_bytes = checkpoint.save(self.folder)
            seconds = (self.job.clock() - began) / 1e9
            self.saves.append(Save(step=self.steps, seconds=seconds, bytes=saved_bytes))
        self.job.align()

    def finish(self) -> RankCheckpoint | None:
        """Saves the final state, erases it, loads it and compares; None for a process that saves nothing."""
        self._save()
        checkpoint, load_seconds = self.job.checkpoint(), 0.0
        if checkpoint is not None:
            held = checkpoint.digest()
            checkpoint.erase()
            began = self.job.clock()
            checkpoint.load(self.folder)
            self.job.wait()
            load_seconds = (self.job.clock() - began) / 1e9
            if checkpoint.digest() != held:
                raise RuntimeError("the checkpoint that was loaded is not what was saved; its times are worth nothing")
        self.job.align()
        return RankCheckpoint(saves=tuple(self.saves), load_seconds=load_seconds) if checkpoint is not None else None
