"""What is told while runs are made: to people a bar with what is left, to programs one JSON object per line."""

import json
import math
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Task, TextColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from paceline.analysis.labels import data_name, setting_marks, varying_settings
from paceline.catalogue import choose
from paceline.cli.terminal import errors, output
from paceline.estimate import MEASURED_STEPS, Estimate
from paceline.execute import Listener
from paceline.plan import Plan, PlannedRun
from paceline.record import STEPS_COUNTED, Record, Status
from paceline.runs.launch import schedule
from paceline.runs.wire import EpochEvent, LogEvent, LossEvent, RunNews, StepEvent, UseEvent
from paceline.spec import RunSpec
from paceline.store import Owner
from paceline.units import format_bytes, format_count, format_rate, format_seconds
from paceline.user_input.printable import printable

_COLOURS = {Status.OK: "green", Status.INTERRUPTED: "yellow"}


class _PlainColumn(TextColumn):
    """A text in which `:name:` is no picture."""

    def render(self, task: Task) -> Text:
        """The text for a task."""
        return Text.from_markup(self.text_format.format(task=task), emoji=False)


class Progress(Listener):
    """A listener of `execute` that draws a live bar on a terminal, and prints lines elsewhere, on standard error."""

    def __init__(self) -> None:
        self._console = errors()
        words, now = TextColumn("{task.description}"), _PlainColumn("{task.fields[now]}")
        columns = (words, BarColumn(bar_width=20), MofNCompleteColumn(), now)
        self._bar = Bar(*columns, console=self._console, transient=True, disable=not self._console.is_terminal)
        self._task = self._bar.add_task("runs", total=0, now="")
        self._left = self._total = 0
        self._began = time.monotonic()
        self._label, self._counted = "", "samples"
        # Fields in which runs of the plan differ.
        self._varying: list[str] = []

    def __enter__(self) -> "Progress":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def planned(self, plan: Plan) -> None:
        """Prints how many runs there are to make."""
        self._left = self._total = len(plan.to_run)
        self._varying = varying_settings(run.spec for run in plan.to_run)
        self._bar.update(self._task, total=self._total)
        if not plan.to_run and plan.done:
            self._console.print(
                f"nothing to do: all {plan.done} runs of {escape(plan.study)} are stored (--fresh repeats them)"
            )
            return
        parts = ["1 run to make" if self._total == 1 else f"{self._total} runs to make"]
        parts += [f"{plan.done} already stored"] if plan.done else []
        parts += [f"{len(plan.skipped)} skipped"] if plan.skipped else []
        self._console.print(f"{escape(plan.study)}: {', '.join(parts)}")
        for note in plan.notes:
            self._console.print(escape(note))

    def fetching(self, name: str, done_bytes: int, total_bytes: int) -> None:
        """Shows a download."""
        now = f"downloading {name}: {format_bytes(done_bytes)} of {format_bytes(total_bytes)}"
        self._bar.update(self._task, now=now)
        if not self._console.is_terminal and done_bytes == total_bytes:
            self._console.print(now)

    def started(self, run: PlannedRun, number: int) -> None:
        """Shows which run starts."""
        self._label = run_name(run.spec, self._varying)
        self._counted = "samples" if run.spec.script is None or run.spec.samples_per_step else "samples or steps"
        self._bar.update(self._task, now=f"{escape(self._label)}, starting{self._time_left()}")

    def event(self, event: RunNews) -> None:
        """Shows the current epoch and its rate."""
        if not isinstance(event, StepEvent | EpochEvent):
            return
        rate = format_rate(event.samples_per_second)
        now = f"{escape(self._label)}, epoch {event.epoch + 1}, {rate} {self._counted}/s{self._time_left()}"
        self._bar.update(self._task, now=now)

    def ended(self, record: Record) -> None:
        """Prints a line with the result of the run."""
        self._left -= 1
        self._bar.advance(self._task)
        colour, status = _COLOURS.get(record.status, "red"), str(record.status).replace("_", " ")
        steady = record.steady
        counted = "steps" if any(finding.code == STEPS_COUNTED for finding in record.findings) else "samples"
        result = f"{format_rate(steady.samples_per_second)} {counted}/s" if steady else escape(record.reason or "")
        place = f"{self._total - self._left}/{self._total}"
        wall = format_seconds(record.wall_seconds)
        self._console.print(f"[dim]{place}[/] [{colour}]{status}[/] {escape(self._label)}: {result} [dim]({wall})[/]")

    def waiting(self, owner: Owner) -> None:
        """Prints whose turn it is."""
        self._console.print(
            f"waiting: another Paceline ({escape(owner.about)}) makes a run with this results file; two at once would "
            f"disturb each other's times"
        )

    def made_elsewhere(self, run: PlannedRun, number: int) -> None:
        """Prints that a run is done."""
        self._left -= 1
        self._bar.advance(self._task)
        name = run_name(run.spec, self._varying)
        self._console.print(f"[dim]{number}/{self._total}[/] stored by another Paceline meanwhile: {escape(name)}")

    def _time_left(self) -> str:
        finished = self._total - self._left
        if not finished:
            return ""
        return f", about {format_seconds((time.monotonic() - self._began) / finished * self._left)} left"


def run_name(spec: RunSpec, varying: Sequence[str] = ()) -> str:
    """The workload, strategy and worker count or layout of a run, and what else tells it from others of its plan."""
    return printable(" ".join([spec.workload, spec.spread_over, *_marks(spec, varying)]))


def _marks(spec: RunSpec, varying: Sequence[str]) -> list[str]:
    """Settings that vary within a plan; a layout is named with the strategy."""
    settings = setting_marks(spec, [name for name in varying if name.partition(".")[0] != "layout"])
    return [*settings, *(["instrumented"] if spec.instrumented else [])]


def _plan_order(item: tuple[str, RunSpec]) -> tuple[str | int, ...]:
    spec = item[1]
    data, layout = f"{spec.dataset} {spec.dataset_copies}", spec.layout.text if spec.layout else ""
    variant = spec.instrumented, layout, spec.accumulation, spec.recompute
    return spec.workload, data, spec.strategy, spec.samples_per_step, spec.workers, *variant


def _configurations(plan: Plan) -> list[dict[str, str | int]]:
    """Every configuration that the plan still has to run, in words, with its number of runs."""
    specs = {run.spec.key(): run.spec for run in plan.to_run}
    counts = Counter(run.spec.key() for run in plan.to_run)
    varying = varying_settings(specs.values())
    configurations: list[dict[str, str | int]] = []
    for key, spec in sorted(specs.items(), key=_plan_order):
        batch = f"{spec.global_batch}" if spec.global_batch else f"{spec.local_batch} per worker"
        configurations.append(
            {
                "workload": spec.workload, "data": data_name(spec),
                "strategy": " ".join([_with_layout(spec), *_marks(spec, varying)]), "workers": spec.workers,
                "batch": batch if spec.samples_per_step else "the script's", "runs": counts[key],
            }
        )  # fmt: skip
    return configurations


def plan_values(plan: Plan, seconds: float | None) -> dict[str, Any]:
    """The plan for programs: configurations, what is skipped and why, and how long it takes where that is known."""
    return {
        "study": plan.study, "runs": len(plan.to_run), "stored": plan.done, "seconds": seconds,
        "configurations": _configurations(plan),
        "skipped": [
            {"strategy": name, "workers": workers, "reason": reason}
            for (name, reason), workers in _skipped(plan).items()
        ],
        "notes": [*plan.notes, *_shrunk_texts(plan)],
    }  # fmt: skip


def print_plan(plan: Plan) -> None:
    """Prints every configuration, and what would be skipped and why, for `--dry-run`."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("workload", "data", "strategy", "workers", "batch", "runs"):
        table.add_column(name, overflow="fold")
    for configuration in _configurations(plan):
        table.add_row(*(escape(str(value)) for value in configuration.values()))
    output().print(table)
    for (name, reason), workers in _skipped(plan).items():
        counts_text = ", ".join(f"x{count}" for count in workers)
        output().print(f"[yellow]skipped[/] {name} {counts_text}: {escape(reason)}")
    for note in (*plan.notes, *_shrunk_texts(plan)):
        output().print(escape(note))
    stored = f", {plan.done} already stored" if plan.done else ""
    output().print(f"{format_count(len(plan.to_run), 'run')} to make{stored}")


def _shrunk_texts(plan: Plan) -> list[str]:
    return list(dict.fromkeys(f"shrunk to {run.spec.shrunk.text}" for run in plan.to_run if run.spec.shrunk))


def _with_layout(spec: RunSpec) -> str:
    return f"{spec.strategy} {spec.layout.text}" if spec.layout else spec.strategy


def _skipped(plan: Plan) -> dict[tuple[str, str], list[int]]:
    """Worker counts by strategy and reason, so that equal reasons are printed once."""
    counts_by_reason: dict[tuple[str, str], list[int]] = {}
    for run in plan.skipped:
        counts = counts_by_reason.setdefault((_with_layout(run.spec), str(run.skip_reason)), [])
        if run.spec.workers not in counts:
            counts.append(run.spec.workers)
    return counts_by_reason


def print_estimate(estimate: Estimate) -> None:
    """Prints how long the plan will take, and what that is based on."""
    if estimate.seconds is None:
        output().print(f"how long cannot be told: no short run ended well ({escape(str(estimate.failure))})")
        return
    sources = [
        (estimate.stored, "stored runs"),
        (estimate.measured, f"at most {MEASURED_STEPS} measured steps"),
        (estimate.extrapolated, "the most similar of those"),
    ]
    counts = ", ".join(f"{count} from {words}" for count, words in sources if count)
    most = ", less where runs come to their target" if estimate.may_end_sooner else ""
    output().print(f"about {format_seconds(estimate.seconds)}{most} [dim](kinds of runs: {counts})[/]")
    if estimate.failure:
        output().print(f"[yellow]a short run did not end well[/]: {escape(estimate.failure)}")


class EventLines(Listener):
    """A listener of `execute` that writes events to standard error and stops the study when nobody reads them."""

    def __enter__(self) -> "EventLines":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def planned(self, plan: Plan) -> None:
        """Writes how many runs there are to make."""
        counts = {"to_run": len(plan.to_run), "stored": plan.done, "skipped": len(plan.skipped)}
        self._write("planned", study=plan.study, **counts)

    def fetching(self, name: str, done_bytes: int, total_bytes: int) -> None:
        """Writes how far a download is."""
        self._write("fetching", dataset=name, done_bytes=done_bytes, total_bytes=total_bytes)

    def started(self, run: PlannedRun, number: int) -> None:
        """Writes which run starts."""
        spec = run.spec
        fields = {"workload": spec.workload, "strategy": spec.strategy, "workers": spec.workers}
        # None where the run ends by itself, as a script does.
        steps = sum(count for _, count in schedule(spec)) or None
        self._write("started", number=number, repeat=run.repeat, key=spec.key(), steps=steps, **fields)

    def event(self, event: RunNews) -> None:
        """Writes how far the run is, its losses, what it uses and what it prints."""
        names = {LossEvent: "losses", UseEvent: "use", LogEvent: "log"}
        self._write(names.get(type(event), "progress"), **event.model_dump())

    def ended(self, record: Record) -> None:
        """Writes how the run ended."""
        rate = record.steady.samples_per_second if record.steady else None
        fields = {"status": str(record.status), "reason": record.reason, "wall_seconds": record.wall_seconds}
        log = {} if record.ok else {"log": record.log_tail}
        self._write("ended", key=record.key, samples_per_second=rate, **fields, **log)

    def waiting(self, owner: Owner) -> None:
        """Writes whose turn it is."""
        self._write("waiting", process=owner.pid, host=owner.host)

    def made_elsewhere(self, run: PlannedRun, number: int) -> None:
        """Writes that another tool made the run."""
        self._write("made_elsewhere", number=number, repeat=run.repeat, key=run.spec.key())

    def _write(self, event: str, **fields: Any) -> None:
        try:
            sys.stderr.write(json.dumps({"event": event, **_finite(fields)}, allow_nan=False) + "\n")
            sys.stderr.flush()
        except BrokenPipeError:
            # As if Ctrl-C had been pressed: the current run is ended whole and what is done is kept.
            raise KeyboardInterrupt from None


def progress_listener(form: str) -> Progress | EventLines:
    """The listener that tells of progress in this form."""
    forms: dict[str, type[Progress | EventLines]] = {"bar": Progress, "json": EventLines}
    return choose(form, forms, "form of progress")()


def _finite(value: Any) -> Any:
    """The value for JSON, which knows no infinity and no NaN: null stands for them."""
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
