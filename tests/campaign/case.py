"""One case of a part: its chances, its folder, the tool in it, and what must hold whatever happens."""

import json
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from paceline.runs.interrupts import STOPPING

# The exit codes that a user may see: done, some runs failed, wrong input, interrupted.
PROMISED = (0, 1, 2, 130)
PATIENCE_SECONDS = 240.0
# What is killed with its parent is gone in milliseconds; a busy machine may take a while to come to it.
MOMENT_SECONDS = 10.0
POLL_SECONDS = 0.01
MARK = "PACELINE_CAMPAIGN"
TOOL = (sys.executable, "-P", "-m", "paceline")


class LostError(Exception):
    """What was promised did not hold."""


class SkippedError(Exception):
    """The case cannot be tried here."""


@dataclass
class Ended:
    """What a command left."""

    words: list[str]
    code: int
    out: str
    err: str


def _hear_signals() -> None:
    """As at a terminal, also where the campaign itself runs in the background, which ignores some of them."""
    for number in STOPPING:
        signal.signal(number, signal.SIG_DFL)


@dataclass
class Case:
    """A number of a part, and the folder that it has to itself."""

    part: str
    seed: int
    number: int
    folder: Path
    tool: tuple[str, ...] = TOOL
    # A part that has one takes less time for it.
    short: bool = False
    chance: random.Random = field(init=False)
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chance = random.Random(f"{self.seed} {self.part} {self.number}")
        self.temporary.mkdir(parents=True)

    @property
    def temporary(self) -> Path:
        """Where its runs put their folders."""
        return self.folder / "temporary"

    @property
    def environment(self) -> dict[str, str]:
        """The environment of its commands, by which their processes are known, forked ones too."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
        return {**kept, "TMPDIR": str(self.temporary), "COLUMNS": "200", MARK: str(self.folder)}

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Starts a command whose messages can be read as they come."""
        process = subprocess.Popen(
            [*TOOL, *words], cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace",
            preexec_fn=_hear_signals,  # noqa: PLW1509
        )  # fmt: skip
        self.started.append(process)
        return process

    def close(self) -> None:
        """Ends what a case that was lost has left running."""
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()

    def run(self, *words: str) -> Ended:
        """Runs a command to its end, which must be one of those that are promised."""
        try:
            ended = subprocess.run(
                [*self.tool, *words], cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL,
                capture_output=True, timeout=PATIENCE_SECONDS, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise LostError(f"no end within {PATIENCE_SECONDS:g} s: {list(words)}") from None
        result = Ended(
            list(words), ended.returncode, ended.stdout.decode(errors="replace"), ended.stderr.decode(errors="replace")
        )
        self.judge(result)
        return result

    def judge(self, ended: Ended, *more_codes: int) -> None:
        """The rule: exit 0, 1, 2 or 130, and never a traceback."""
        if ended.code not in (*PROMISED, *more_codes):
            raise LostError(f"exit code {ended.code}: {ended.words}: {ended.err[-300:]}")
        # At the beginning of a line: the reason of a failed run may quote what a worker said.
        if re.search("^Traceback ", ended.err, re.MULTILINE):
            raise LostError(f"a traceback: {ended.words}: {ended.err.strip().splitlines()[-1][:300]}")

    def processes(self) -> list[int]:
        """Everything alive that came from this case's commands."""
        wanted, alive = f"{MARK}={self.folder}".encode(), []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if (
                    wanted in (entry / "environ").read_bytes().split(b"\0")
                    and b"\nState:\tZ" not in (entry / "status").read_bytes()
                ):
                    alive.append(int(entry.name))
            except OSError:
                continue
        return alive

    def expect_quiet(self) -> None:
        """No process may be left after a moment."""
        try:
            wait_until(lambda: not self.processes(), "", MOMENT_SECONDS)
        except LostError:
            left = self.processes()
            names = [Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")[:100] for pid in left]
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            raise LostError(f"still alive: {names}") from None

    def expect_clean(self) -> None:
        """Neither a process nor a folder of a run may be left."""
        self.expect_quiet()
        folders = [path.name for path in self.temporary.glob("paceline-*")]
        if folders:
            raise LostError(f"folders left: {folders}")

    def stored(self) -> Counter[tuple[str, int, str]]:
        """How often each run of a configuration is stored with which status."""
        path = self.folder / "paceline.db"
        if not path.exists():
            return Counter()
        connection = sqlite3.connect(path)
        try:
            return Counter(connection.execute("SELECT key, repeat, status FROM runs").fetchall())
        finally:
            connection.close()

    def expect_stored(self, ended: Counter[str]) -> None:
        """Whatever the tool said had ended is stored."""
        kept = Counter(key for key, _, _ in self.stored().elements())
        if missing := ended - kept:
            raise LostError(f"said to have ended and not stored: {dict(missing)}")

    def expect_each_once(self, runs: int) -> None:
        """Every run of the study is stored once with a result, or once as failed."""
        final = Counter((key, repeat) for key, repeat, status in self.stored().elements() if status != "interrupted")
        if len(final) != runs:
            raise LostError(f"{len(final)} runs stored of {runs}")
        if twice := [name for name, count in final.items() if count > 1]:
            raise LostError(f"stored more than once: {twice}")


def wait_until(condition: Callable[[], object], what: str, seconds: float = PATIENCE_SECONDS) -> None:
    """Returns as soon as the condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise LostError(f"waited {seconds:g} s in vain: {what}")
        time.sleep(POLL_SECONDS)


@dataclass
class Watched:
    """A study under way, whose events are read as they come."""

    case: Case
    process: subprocess.Popen[str]
    words: list[str]
    lines: list[str] = field(default_factory=list)
    ended: Counter[str] = field(default_factory=Counter)

    def until(self, phase: str, number: int) -> bool:
        """Reads on until the run of that number is in the phase; False where the tool ended before."""
        assert self.process.stderr is not None
        begun = 0
        for line in self.process.stderr:
            event = self._take(line)
            begun += event.get("event") == "started"
            if begun < number:
                continue
            name = event.get("event")
            epoch_ended = name == "progress" and event.get("kind") == "epoch"
            if (phase, name) in (("start-up", "started"), ("training", "progress")) or (
                phase == "storing" and epoch_ended
            ):
                return True
        return False

    def _take(self, line: str) -> dict[str, object]:
        self.lines.append(line)
        try:
            event: dict[str, object] = json.loads(line)
        except ValueError:
            return {}
        if event.get("event") == "ended":
            self.ended[str(event["key"])] += 1
        return event

    def finish(self, *more_codes: int) -> Ended:
        """Reads to the end and holds the tool to its rule."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._take(line)
        code = self.process.wait(timeout=PATIENCE_SECONDS)
        ended = Ended(self.words, code, "", "".join(self.lines))
        self.case.judge(ended, *more_codes)
        return ended


def watch(case: Case, *words: str) -> Watched:
    """Starts a study whose events are read."""
    return Watched(case, case.start(*words, "--progress", "json"), list(words))
