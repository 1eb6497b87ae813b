"""Studies that were started here: each a `paceline run` in a process of its own, one after another.

Two at once would disturb each other's times. A study is stopped as Ctrl-C would stop it; if this server is killed, its
study notices at its next event that nobody reads any more, and stops in the same way.
"""

import asyncio
import itertools
import json
import signal
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from paceline.units import format_bytes, format_rate, format_seconds
from paceline.web.commands import start_command
from paceline.web.form import command_line
from paceline.web.results_cache import Filters

State = Literal["waiting", "running", "stopping", "done", "some failed", "stopped", "refused", "broken"]
# What the exit code of `paceline run` says.
ENDINGS: dict[int, State] = {0: "done", 1: "some failed", 2: "refused", 130: "stopped"}
# How long a study may take to end its run and store what it has before it is killed.
PATIENCE_SECONDS = 20.0
KEPT_LINES = 40
LONGEST_LINE_BYTES = 1 << 20


@dataclass
class Job:
    """One study that was started here, and its state."""

    number: int
    arguments: tuple[str, ...]
    # The address of the form as it was filled in.
    form: str = ""
    state: State = "waiting"
    study: str = ""
    total: int = 0
    finished: int = 0
    stored: int = 0
    skipped: int = 0
    label: str = ""
    now: str = ""
    started_at: float = 0.0
    # Runs that ended, newest last; and lines of the command that were not events.
    ended: deque[dict[str, str]] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))
    messages: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))
    # Workloads, strategies and worker counts of its runs.
    run_values: dict[str, tuple[str, ...]] = field(default_factory=dict)
    process: asyncio.subprocess.Process | None = None

    @property
    def open(self) -> bool:
        """Whether the study has not ended yet."""
        return self.state in ("waiting", "running", "stopping")

    def snapshot(self) -> dict[str, Any]:
        """The state as values for the page."""
        return {
            "number": self.number, "command": command_line(self.arguments), "state": self.state, "open": self.open,
            "query": Filters({"study": (self.study,), **self.run_values}).query, "form": self.form,
            "study": self.study, "total": self.total, "finished": self.finished, "stored": self.stored,
            "skipped": self.skipped, "now": self._now(), "ended": list(self.ended),
            "messages": "\n".join(self.messages),
        }  # fmt: skip

    def read_line(self, line: str) -> None:
        """Takes in one line of the command's standard error: an event, or a message for people."""
        try:
            event = json.loads(line)
        except json.JSONDecodeError:
            event = None
        if not isinstance(event, dict) or "event" not in event:
            if line.strip():
                self.messages.append(line.rstrip())
            return
        getattr(self, f"_on_{event['event']}", lambda _event: None)(event)

    def _on_planned(self, event: dict[str, Any]) -> None:
        self.study, self.total = event["study"], event["to_run"]
        self.stored, self.skipped = event["stored"], event["skipped"]
        self.started_at = time.monotonic()

    def _on_fetching(self, event: dict[str, Any]) -> None:
        done, total = format_bytes(event["done_bytes"]), format_bytes(event["total_bytes"])
        self.now = f"downloading {event['dataset']}: {done} of {total}"

    def _on_started(self, event: dict[str, Any]) -> None:
        self.label = f"{event['workload']} {event['strategy']} x{event['workers']}"
        self.now = f"{self.label}, starting"
        for name in ("workload", "strategy", "workers"):
            self.run_values[name] = tuple(dict.fromkeys((*self.run_values.get(name, ()), str(event[name]))))

    def _on_progress(self, event: dict[str, Any]) -> None:
        rate = format_rate(event["samples_per_second"])
        self.now = f"{self.label}, epoch {event['epoch'] + 1}, {rate} samples/s"

    def _on_ended(self, event: dict[str, Any]) -> None:
        self.finished += event["status"] != "interrupted"
        rate, duration = event["samples_per_second"], format_seconds(event["wall_seconds"])
        result = f"{format_rate(rate)} samples/s" if rate else event["reason"] or ""
        status = event["status"].replace("_", " ")
        self.ended.append({"status": status, "name": self.label, "result": result, "took": duration})
        self.now = ""

    def _now(self) -> str:
        if self.state != "running":
            return ""
        if not self.finished or self.finished >= self.total:
            return self.now or "looking at what there is to do"
        left = (time.monotonic() - self.started_at) / self.finished * (self.total - self.finished)
        return f"{self.now or self.label}; about {format_seconds(left)} left"


class Jobs:
    """The queue of studies; only the event loop's thread uses it."""

    def __init__(self) -> None:
        self.all: list[Job] = []
        self.revision = 0
        self._numbers = itertools.count(1)
        self._changed = asyncio.Event()
        self._worker: asyncio.Task[None] | None = None

    def start(self, arguments: Sequence[str], form: str = "") -> Job:
        """Puts a study at the end of the queue."""
        job = Job(next(self._numbers), tuple(arguments), form)
        self.all.append(job)
        self._notify()
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        return job

    def stop(self, number: int) -> None:
        """Stops a study: at once if it waits, as Ctrl-C would if it runs."""
        for job in self.all:
            if job.number == number and job.state == "waiting":
                job.state = "stopped"
            elif job.number == number and job.state == "running":
                job.state = "stopping"
                _signal(job, signal.SIGINT)
        self._notify()

    async def changed(self, seconds: float) -> None:
        """Returns when a study changed, or after so many seconds."""
        try:
            await asyncio.wait_for(self._changed.wait(), seconds)
        except TimeoutError:
            return

    async def close(self) -> None:
        """Stops all studies and waits until they have ended."""
        for job in self.all:
            if job.open:
                self.stop(job.number)
        if self._worker is not None:
            _, late = await asyncio.wait([self._worker], timeout=PATIENCE_SECONDS)
            for job in self.all if late else ():
                _signal(job, signal.SIGKILL)
            await self._worker

    async def _work(self) -> None:
        while job := next((job for job in self.all if job.state == "waiting"), None):
            job.state = "running"
            self._notify()
            try:
                code = await self._run(job)
            except (OSError, ValueError) as error:
                code = None
                job.messages.append(str(error))
            job.state = "broken" if code is None else ENDINGS.get(code, "broken")
            job.process = None
            self._notify()

    async def _run(self, job: Job) -> int:
        arguments = [*job.arguments, "--progress=json"]
        job.process = await start_command(arguments, 120, stdout=asyncio.subprocess.DEVNULL, limit=LONGEST_LINE_BYTES)
        assert job.process.stderr is not None
        async for line in job.process.stderr:
            job.read_line(line.decode(errors="replace"))
            self._notify()
        return await job.process.wait()

    def _notify(self) -> None:
        self.revision += 1
        self._changed.set()
        self._changed = asyncio.Event()


def _signal(job: Job, number: signal.Signals) -> None:
    if job.process is not None and job.process.returncode is None:
        job.process.send_signal(number)
