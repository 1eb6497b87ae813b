"""One command that was started here, and what is known of it from the lines that it writes."""

import asyncio
import json
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from paceline.units import format_bytes, format_rate, format_seconds
from paceline.web.curves import RunCurves
from paceline.web.form import command_line
from paceline.web.results_cache import Filters

State = Literal["waiting", "running", "stopping", "done", "some failed", "stopped", "refused", "broken"]
# Runs that ended, messages and lines of the log that a page shows, and characters of each.
KEPT_LINES, KEPT_LOG_LINES, LONGEST_LINE = 40, 60, 300
# Before this much of a study is done, how long it takes cannot be told.
TELLING_SHARE = 0.02


def _lines(most: int) -> Callable[[], deque[Any]]:
    return lambda: deque(maxlen=most)


@dataclass
class Job:
    """One study or question that was started here, and its state."""

    number: int
    arguments: tuple[str, ...]
    # The address of the form as it was filled in, and of the page that shows the answer.
    form: str = ""
    answer_at: str = ""
    state: State = "waiting"
    study: str = ""
    total: int = 0
    finished: int = 0
    stored: int = 0
    skipped: int = 0
    label: str = ""
    now: str = ""
    started_at: float = 0.0
    run_started_at: float = 0.0
    curves: RunCurves = field(default_factory=RunCurves)
    # Runs that ended, newest last; lines of the command that were not events; what the current run prints.
    ended: deque[dict[str, str]] = field(default_factory=_lines(KEPT_LINES))
    messages: deque[str] = field(default_factory=_lines(KEPT_LINES))
    log: deque[str] = field(default_factory=_lines(KEPT_LOG_LINES))
    # Workloads, strategies and worker counts of its runs.
    run_values: dict[str, tuple[str, ...]] = field(default_factory=dict)
    process: asyncio.subprocess.Process | None = None
    # What the command printed, where its answer is shown.
    output: str = ""
    # Counts the changes of all jobs: those above the number that a page has seen are news to it.
    revision: int = 0

    @property
    def open(self) -> bool:
        """Whether it has not ended yet."""
        return self.state in ("waiting", "running", "stopping")

    def snapshot(self) -> dict[str, Any]:
        """The state as values for the page."""
        return {
            "number": self.number, "command": command_line(self.arguments), "state": self.state, "open": self.open,
            "query": Filters({"study": (self.study,), **self.run_values}).query, "form": self.form,
            "answer": self.answer_at if self.state == "done" else "",
            "study": self.study, "total": self.total, "finished": self.finished, "stored": self.stored,
            "skipped": self.skipped, "now": self._now(), "left": self._left(), "share": self._share_done(),
            "curves": self.curves.values(), "log": "\n".join(self.log), "ended": list(self.ended),
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
                self.messages.append(line.rstrip()[:LONGEST_LINE])
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
        self.curves, self.run_started_at = RunCurves(event.get("steps")), time.monotonic()
        self.log.clear()
        for name in ("workload", "strategy", "workers"):
            self.run_values[name] = tuple(dict.fromkeys((*self.run_values.get(name, ()), str(event[name]))))

    def _on_progress(self, event: dict[str, Any]) -> None:
        rate = format_rate(event["samples_per_second"] or 0.0)
        self.now = f"{self.label}, epoch {event['epoch'] + 1}, {rate} samples/s"
        self.curves.progress(event, time.monotonic() - self.run_started_at)

    def _on_losses(self, event: dict[str, Any]) -> None:
        self.curves.losses(event)

    def _on_use(self, event: dict[str, Any]) -> None:
        self.curves.use(event, time.monotonic() - self.run_started_at)

    def _on_log(self, event: dict[str, Any]) -> None:
        self.log.extend(f"[{event['rank']}] {line}"[:LONGEST_LINE] for line in event["text"].splitlines())

    def _on_ended(self, event: dict[str, Any]) -> None:
        self.finished += event["status"] != "interrupted"
        rate, duration = event["samples_per_second"], format_seconds(event["wall_seconds"])
        result = f"{format_rate(rate)} samples/s" if rate else event["reason"] or ""
        status = event["status"].replace("_", " ")
        self.ended.append({"status": status, "name": self.label, "result": result, "took": duration})
        self.now, self.curves.done_steps = "", 0
        if event.get("log"):
            self.log.clear()
            self.log.extend(line[:LONGEST_LINE] for line in event["log"].splitlines())

    def _now(self) -> str:
        if self.state != "running":
            return ""
        return self.now or (self.label if self.finished else "looking at what there is to do")

    def _share_done(self) -> float:
        return min(1.0, (self.finished + self.curves.share_done) / self.total) if self.total else 0.0

    def _left(self) -> str:
        """How long it will still take, if the rest takes as long as what is done."""
        share = self._share_done()
        if self.state != "running" or not TELLING_SHARE <= share < 1.0:
            return ""
        return f"about {format_seconds((time.monotonic() - self.started_at) * (1 - share) / share)} left"
