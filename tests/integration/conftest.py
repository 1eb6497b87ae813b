"""The command line as users start it: real processes, each test in a folder and with a temporary folder of its own.

Whatever a test does to the tool, afterwards no worker may be running and no run's folder may be left. Commands that run
to their end are forked from a process that has imported the tool; those that are stopped on the way are started afresh.
"""

import os
import pkgutil
import signal
import subprocess
import sysconfig
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from interpreters import Interpreter
from paceline import cli
from paceline.record import Record
from paceline.runs.interrupts import STOPPING
from paceline.store import Store

# Long enough for any single command of these tests on a slow and busy machine; only a hang takes longer.
PATIENCE_SECONDS = 300.0
POLL_SECONDS = 0.02
SCRIPT = Path(sysconfig.get_path("scripts")) / "paceline"
WORKER = "paceline.runs.worker"
IMPORTED = [f"paceline.cli.{module.name}" for module in pkgutil.iter_modules(cli.__path__)]
# What would change the tool's words or what its workers see.
UNWANTED = ("FORCE_COLOR", "PACELINE_DATA", "MASTER_PORT", "RANK", "WORLD_SIZE")


def wait_until(condition: Callable[[], object], what: str, seconds: float = PATIENCE_SECONDS) -> None:
    """Returns as soon as the condition holds; says what was waited for when it never does."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:g} s in vain: {what}"
        time.sleep(POLL_SECONDS)


def hear_interrupts() -> None:
    """As at a terminal, also where the tests themselves run in the background and no interrupt reaches them."""
    for number in STOPPING:
        signal.signal(number, signal.SIG_DFL)


def workers_of(pid: int) -> list[int]:
    """Worker processes among the children of a process, in the order of their ranks."""
    found = {}
    for child in psutil.Process(pid).children(recursive=True):
        try:
            words = child.cmdline()
        except psutil.Error:
            continue
        # A fork server names the module too, among those that it imports.
        if words[2:4] == ["-m", WORKER]:
            found[int(words[words.index(WORKER) + 2])] = child.pid
    return [found[rank] for rank in sorted(found)]


@dataclass(frozen=True)
class Ended:
    """What a command left on the terminal."""

    code: int
    out: str
    err: str

    @property
    def said(self) -> str:
        """Everything printed, line breaks as spaces."""
        return " ".join((self.out + self.err).split())


@dataclass
class Tool:
    """`paceline` in one folder."""

    folder: Path
    # What runs a command to its end.
    script: Path = SCRIPT
    more: dict[str, str] = field(default_factory=dict)
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def temporary(self) -> Path:
        """Where its runs put their folders."""
        return self.folder.parent / f"{self.folder.name}-temporary"

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name not in UNWANTED}
        return {**kept, "TMPDIR": str(self.temporary), "COLUMNS": "200", **self.more}

    def __call__(self, *words: str | Path) -> Ended:
        """Runs a command to its end."""
        ended = subprocess.run(
            [self.script, *words], cwd=self.folder, env=self.environment, capture_output=True, text=True,
            timeout=PATIENCE_SECONDS, check=False,
        )  # fmt: skip
        return Ended(ended.returncode, ended.stdout, ended.stderr)

    def start(self, *words: str | Path) -> "Started":
        """Starts a command and does not wait for it."""
        return self.start_words([SCRIPT, *words])

    def start_words(self, words: list[str | Path]) -> "Started":
        """Starts any program and does not wait for it."""
        out, err = self.temporary / "out", self.temporary / "err"
        with out.open("w") as to_out, err.open("w") as to_err:
            process = subprocess.Popen(
                words, cwd=self.folder, env=self.environment,
                stdin=subprocess.DEVNULL, stdout=to_out, stderr=to_err, preexec_fn=hear_interrupts,  # noqa: PLW1509
            )  # fmt: skip
        self.started.append(process)
        return Started(process, out, err)

    def end_started(self) -> None:
        """Stops what a test that failed has left running, so that the next one does not suffer from it."""
        for process in self.started:
            if process.poll() is None:
                process.terminate()
                process.wait(timeout=PATIENCE_SECONDS)

    def write(self, name: str, text: str) -> Path:
        """A file in the tool's folder."""
        path = self.folder / name
        path.write_text(text)
        return path

    def records(self, db: str = "paceline.db", study: str | None = None) -> list[Record]:
        """What is stored, newest of each configuration and repeat."""
        with Store.open_existing(self.folder / db) as store:
            return store.records(study, with_steps=True)

    def listing(self) -> list[str]:
        """The files in its folder."""
        return sorted(path.name for path in self.folder.iterdir())

    def running_workers(self) -> list[int]:
        """Worker processes of this tool, whoever their parent is now."""
        found = []
        for process in psutil.process_iter():
            try:
                words = process.cmdline()
            except psutil.Error:
                continue
            if WORKER in words and any(word.startswith(str(self.temporary)) for word in words):
                found.append(process.pid)
        return found

    def left_folders(self) -> list[str]:
        """Folders of runs that were not removed."""
        return [path.name for path in self.temporary.glob("paceline-run-*")]


@dataclass
class Started:
    """A command that is running."""

    process: subprocess.Popen[bytes]
    out: Path
    err: Path

    def wait_for(self, text: str) -> None:
        """Until it has said so on standard error."""
        wait_until(lambda: text in self.err.read_text() or self.process.poll() is not None, f"{text!r} on stderr")
        assert text in self.err.read_text(), self.err.read_text()

    def workers(self) -> list[int]:
        """Its worker processes."""
        return workers_of(self.process.pid) if self.process.poll() is None else []

    def end(self) -> Ended:
        """Waits for its end."""
        code = self.process.wait(timeout=PATIENCE_SECONDS)
        return Ended(code, self.out.read_text(), self.err.read_text())


def _open_tool(folder: Path, script: Path) -> Iterator[Tool]:
    tool = Tool(folder, script)
    tool.temporary.mkdir()
    yield tool
    tool.end_started()
    assert tool.running_workers() == []
    assert tool.left_folders() == []


@pytest.fixture(scope="session")
def imported() -> Iterator[Interpreter]:
    """A Python that has imported what most commands need."""
    interpreter = Interpreter(*IMPORTED, environment={"OPENBLAS_NUM_THREADS": "1"})
    yield interpreter
    interpreter.close()


@pytest.fixture
def tool(tmp_path: Path, imported: Interpreter) -> Iterator[Tool]:
    """The command line in an empty folder."""
    folder = tmp_path / "here"
    folder.mkdir()
    yield from _open_tool(folder, imported.command(SCRIPT))


@pytest.fixture(scope="module")
def shared_tool(tmp_path_factory: pytest.TempPathFactory, imported: Interpreter) -> Iterator[Tool]:
    """The same for a whole file of tests, where one run serves many of them."""
    yield from _open_tool(tmp_path_factory.mktemp("shared"), imported.command(SCRIPT))
