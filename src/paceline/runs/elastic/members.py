"""Processes that come and go one by one: those of a run on this machine, started as those of any other run are."""

from dataclasses import dataclass, field

from paceline.contract.context import Process
from paceline.runs.launchers.local import LocalGroup


@dataclass
class Members:
    """The group of a local run, of which the last worker leaves and is replaced."""

    group: LocalGroup
    processes: tuple[Process, ...]
    # Whether the last worker is away.
    away: bool = False
    rank: int = field(init=False)

    def __post_init__(self) -> None:
        self.rank = max(process.rank for process in self.processes if process.role == "worker")

    def start(self) -> None:
        """Starts every process."""
        self.group.start()

    def leave(self) -> None:
        """Kills the last worker."""
        self.group.depart(self.rank)
        self.away = True

    def join(self) -> None:
        """Starts a worker with its rank."""
        self.group.arrive(self.rank)
        self.away = False

    def poll(self, seconds: float) -> list[int | None]:
        """Exit codes of those who are there; a departed worker's own says nothing."""
        self.group.events(seconds)
        codes = self.group.exit_codes()
        return [codes[process.rank] for process in self.present()]

    def only_last_worker_runs(self) -> bool:
        """Whether all others have ended well."""
        codes = self.group.exit_codes()
        return codes[self.rank] is None and all(code == 0 for rank, code in enumerate(codes) if rank != self.rank)

    def present(self) -> tuple[Process, ...]:
        """The processes that are members now."""
        return tuple(process for process in self.processes if not (self.away and process.rank == self.rank))

    def kill(self) -> None:
        """Ends every process."""
        self.group.kill()
