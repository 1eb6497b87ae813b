"""The temporary folder of one run: which files are in it, and what they hold. No other file knows their names."""

import contextlib
import hashlib
import os
import platform
import select
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from paceline.runs.processes import is_alive
from paceline.runs.wire import RANK_REPORT, Published, RankError, RankResult, WorkerOrders
from paceline.spec import RunSpec

FOLDER_PREFIX = "paceline-run-"
CHECKPOINT_PREFIX = "paceline-checkpoints-"
LOG_TAIL_BYTES = 8_000
PID_NAMESPACE = Path("/proc/self/ns/pid")
MARK_LENGTH = 8


@dataclass(frozen=True)
class RunFolder:
    """Where a launcher and the processes of a run on the same machine leave things for each other."""

    path: Path
    # Where a process says what it published, so that its launcher can tell processes on other machines.
    events_fd: int | None = None

    @property
    def weights(self) -> Path:
        """The trained weights, where the run was asked to keep them."""
        return self.path / "weights.npz"

    def log(self, rank: int) -> Path:
        """What a process prints."""
        return self.path / f"rank-{rank}.log"

    def log_tail(self, rank: int) -> str:
        """The end of what a process printed; nothing of one that was never started, as where the user interrupts."""
        later = self.later_log(rank)
        log = later if later.exists() else self.log(rank)
        return "" if not log.exists() else log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")

    def later_log(self, rank: int) -> Path:
        """What a process prints that came in the place of another."""
        return self.path / f"rank-{rank}-later.log"

    def write_orders(self, orders: WorkerOrders) -> None:
        """Leaves the orders for all processes."""
        (self.path / "orders.json").write_text(orders.model_dump_json())

    def read_orders(self) -> WorkerOrders:
        """The orders, as every process reads them."""
        return WorkerOrders.model_validate_json((self.path / "orders.json").read_bytes())

    def write_report(self, rank: int, report: RankResult | RankError) -> None:
        """Leaves what became of a process."""
        self._write_whole(f"rank-{rank}.json", report.model_dump_json())

    def read_report(self, rank: int) -> RankResult | RankError | None:
        """What became of a process; None where it left nothing."""
        file = self.path / f"rank-{rank}.json"
        return RANK_REPORT.validate_json(file.read_bytes()) if file.exists() else None

    def publish(self, name: str, rank: int, value: str) -> None:
        """Leaves a short text for the other processes (see `contract.context.Exchange`)."""
        self.deliver(Published(name=name, rank=rank, value=value))
        if self.events_fd is not None:
            line = Published(name=name, rank=rank, value=value).model_dump_json().encode() + b"\n"
            assert len(line) <= select.PIPE_BUF, "longer lines of two processes would mix"
            os.write(self.events_fd, line)

    def deliver(self, text: Published) -> None:
        """Leaves what a process published, here or on another machine, for the processes of this one."""
        self._write_whole(f"{text.name}-{text.rank}", text.value)

    def read(self, name: str, rank: int) -> str | None:
        """The text of that name that a process has published; None before it has."""
        file = self.path / f"{name}-{rank}"
        return file.read_text() if file.exists() else None

    def _write_whole(self, name: str, text: str) -> None:
        """Writes the file under another name first, so that it is whole or absent."""
        draft = self.path / f"{name}.draft"
        draft.write_text(text)
        draft.replace(self.path / name)


@contextlib.contextmanager
def checkpoint_folder(spec: RunSpec, folder: RunFolder) -> Iterator[Path | None]:
    """Where a run's checkpoints go: into the run's folder, or one in the user's that is removed afterwards."""
    if spec.checkpoint_every is None:
        yield None
        return
    if spec.checkpoint_to is None:
        inside = folder.path / "checkpoints"
        inside.mkdir()
        yield inside
        return
    place = Path(spec.checkpoint_to)
    place.mkdir(parents=True, exist_ok=True)
    for orphan in orphaned_folders(CHECKPOINT_PREFIX, place):
        shutil.rmtree(orphan, ignore_errors=True)
    beside = new_folder(CHECKPOINT_PREFIX, place)
    try:
        yield beside
    finally:
        shutil.rmtree(beside, ignore_errors=True)


@contextlib.contextmanager
def run_folder() -> Iterator[RunFolder]:
    """A temporary folder for one run, removed afterwards, together with those that killed tools left behind."""
    for orphan in orphaned_folders(FOLDER_PREFIX):
        shutil.rmtree(orphan, ignore_errors=True)
    folder = new_folder(FOLDER_PREFIX)
    try:
        yield RunFolder(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def new_folder(prefix: str, place: Path | None = None) -> Path:
    """A folder, temporary or in that place, that is named after this process and where its number counts."""
    return Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-{process_space()}-", dir=place))


def orphaned_folders(prefix: str, place: Path | None = None) -> list[Path]:
    """Folders, temporary or in that place, whose process was of this machine and has ended.

    Of those that other machines made on a disk that they share, nothing is known here.
    """
    orphans = []
    for folder in (place or Path(tempfile.gettempdir())).glob(prefix + "*"):
        creator, _, rest = folder.name.removeprefix(prefix).partition("-")
        if creator.isdigit() and rest.startswith(f"{process_space()}-") and not is_alive(int(creator)):
            orphans.append(folder)
    return orphans


@cache
def process_space() -> str:
    """A mark of the machine, and of the container on it, in which numbers of processes are given out."""
    try:
        space = str(PID_NAMESPACE.readlink())
    except OSError:
        space = ""
    return hashlib.sha256(f"{platform.node()} {space}".encode()).hexdigest()[:MARK_LENGTH]
