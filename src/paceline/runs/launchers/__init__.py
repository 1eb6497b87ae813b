"""Launchers: where the processes of a run are started. A launcher is one file here and is passed to `launch`."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from paceline.contract.context import Process
from paceline.runs.wire import MachineReport, RankError, RankResult, RunNews, RunOrders
from paceline.spec import RunSpec
from paceline.systems import System


class ProcessGroup(Protocol):
    """The processes of one run. All of them are gone when the context that gave the group ends."""

    def start(self) -> None:
        """Starts every process."""

    def events(self, seconds: float) -> list[RunNews]:
        """What processes reported within that time, and what they use and print; empty if there is nothing new."""

    def exit_codes(self) -> list[int | None]:
        """The exit code of each process in rank order; None while it runs, negative for a signal."""

    def troubles(self) -> list[str]:
        """Why machines of the run were lost, in words; empty while all of them are there."""

    def kill(self) -> None:
        """Ends every process and whatever it started, at once, and waits until they are gone."""

    def reports(self) -> list[RankResult | RankError | None]:
        """What each process left in rank order; None for one that left nothing."""

    def log_tails(self) -> list[str]:
        """The end of what each process printed, in rank order."""

    def machines(self) -> list[MachineReport]:
        """What the meters of each machine read, in the order of their numbers; read once no process is left."""

    def save_weights(self, file: Path) -> None:
        """Writes the trained weights there, if the run kept any."""


class Launcher(Protocol):
    """A way to start the processes of a run."""

    def lay_out(self, spec: RunSpec, system: System) -> tuple[Process, ...]:
        """The processes of a run: where each of them is, its cores, and where the others reach it."""

    def open(self, orders: RunOrders) -> AbstractContextManager[ProcessGroup]:
        """A group that is ready to start; its time has not begun."""
