"""What the processes left ─► the run's record: how it ended and why, and the parts of all ranks put together."""

import json
import math
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from typing import Any

from paceline.breakdown import break_down
from paceline.contract.context import Process
from paceline.plan import PlannedRun
from paceline.record import Energy, Epoch, Finding, Memory, Rank, Record, Startup, Status, TraceSpan
from paceline.runs.meters.energy import Meter, charge
from paceline.runs.processes import Group
from paceline.spans import Span
from paceline.warm_up import warm_up_steps

Part = dict[str, Any]
# An epoch this much slower than the one after it carries start-up costs worth naming.
SLOW_FIRST_EPOCH = 1.2
# A trace of more steps than this is larger without saying more.
TRACED_STEPS = 3


@dataclass(frozen=True)
class Ending:
    """How the processes ended: exit codes as they were when the watching stopped, and what each left."""

    codes: Sequence[int | None]
    verdict: Status | None = None
    seconds_allowed: float | None = None
    parts: Sequence[Part | None] = field(default=())
    log_tails: Sequence[str] = field(default=())
    meter: Meter | None = None

    @property
    def queued(self) -> float:
        """Of the process that stood longest without a core: the share of its time."""
        told = [part.get("details", {}).get("run_queue_share", 0.0) for part in self.parts if part]
        return float(max(told, default=0.0))

    def with_parts(self, folder: Path, group: Group) -> "Ending":
        """With the result files and logs, which the run's folder takes with it when it goes."""
        files = [folder / f"rank-{rank}.json" for rank in range(len(self.codes))]
        parts = [json.loads(file.read_text()) if file.exists() else None for file in files]
        return replace(self, parts=parts, log_tails=[group.log_tail(rank) for rank in range(len(self.codes))])


def make_record(
    run: PlannedRun, study: str, processes: Sequence[Process], ending: Ending, launched: int,
    *, started_at: str, findings: list[Finding], environment: dict[str, Any],
) -> Record:  # fmt: skip
    """The record of a run that was started."""
    status, reason, culprit = classify(ending, processes)
    base = Record(
        study=study, spec=run.spec, repeat=run.repeat, status=status, reason=reason, started_at=started_at,
        wall_seconds=(perf_counter_ns() - launched) / 1e9, findings=tuple(findings), environment=environment,
        log_tail="" if status is Status.OK else ending.log_tails[culprit],
    )  # fmt: skip
    return _with_measurements(base, processes, ending, launched) if status is Status.OK else base


def classify(ending: Ending, processes: Sequence[Process]) -> tuple[Status, str | None, int]:
    """Status, reason in words, and the rank whose log tells most. A signal explains more than the errors it causes."""
    if ending.verdict is Status.TIMED_OUT:
        return Status.TIMED_OUT, f"did not end within {ending.seconds_allowed:g} s (timeout_seconds)", 0
    if ending.verdict is not None:
        return ending.verdict, "interrupted by the user", 0
    for rank, code in enumerate(ending.codes):
        if code is not None and code < 0:
            name = _signal_name(-code)
            return Status.FAILED, f"rank {rank} ({processes[rank].role}) was killed by {name}", rank
    errors = [(part["failed_at"], rank) for rank, part in enumerate(ending.parts) if part and "error" in part]
    if errors:
        rank = min(errors)[1]
        part = ending.parts[rank]
        assert part is not None
        return _from_error(part["error"], rank, processes[rank].role)
    lost = [rank for rank, code in enumerate(ending.codes) if code]
    lost += [rank for rank, part in enumerate(ending.parts) if part is None]
    if lost:
        role, code = processes[lost[0]].role, ending.codes[lost[0]]
        return Status.FAILED, f"rank {lost[0]} ({role}) ended with exit code {code} and no result", lost[0]
    return Status.OK, None, 0


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # real-time signals have no name
        return f"signal {number}"


def _from_error(error: Part, rank: int, role: str) -> tuple[Status, str, int]:
    if error["kind"] == "user_error":
        return Status.FAILED, str(error["text"]), rank
    words = f"{error['type']}: {error['text']}" if error["text"] else str(error["type"])
    status = Status.OUT_OF_MEMORY if error["kind"] == "out_of_memory" else Status.FAILED
    return status, f"rank {rank} ({role}): {words}", rank


def _with_measurements(base: Record, processes: Sequence[Process], ending: Ending, launched: int) -> Record:
    parts = [part for part in ending.parts if part is not None]
    count = max(len(part["epochs"]) for part in parts)
    epochs = tuple(_epoch([part["epochs"][n] for part in parts if part["epochs"]], base, n) for n in range(count))
    losses = [
        loss for n in range(count) for loss in _mean_losses([part["epochs"][n] for part in parts if part["epochs"]])
    ]
    ranks = tuple(
        Rank(
            rank=process.rank, role=process.role, cores=process.cores, cpu_seconds=part["cpu_seconds"],
            peak_memory_bytes=part["peak_memory_bytes"], memory=_memory(part), details=part["details"],
        )
        for process, part in zip(processes, parts, strict=True)
    )  # fmt: skip
    findings = [*base.findings, *_loss_finding(losses), *_first_epoch_finding(epochs)]
    charged, energy = _charged(base, epochs, parts, ending.meter)
    return base.model_copy(
        update={
            "startup": _startup(parts, launched),
            "epochs": charged,
            "energy": energy,
            "ranks": ranks,
            "losses": tuple(loss if math.isfinite(loss) else None for loss in losses),
            "step_seconds": {process.rank: _steps(part) for process, part in zip(processes, parts, strict=True)},
            "findings": tuple(findings),
            **_settled([_steps(part) for part in parts if part["epochs"]]),
            **_traced(processes, parts),
        }
    )


def _charged(
    base: Record, epochs: tuple[Epoch, ...], parts: list[Part], meter: Meter | None
) -> tuple[tuple[Epoch, ...], Energy | None]:
    """The epochs with their joules and where those come from; an instrumented run has no epochs worth charging."""
    if base.spec.instrumented:
        return epochs, None
    views = [[part["epochs"][n] for part in parts if part["epochs"]] for n in range(len(epochs))]
    edges = [(min(view["stamps"][0] for view in own), max(view["ended"] for view in own)) for own in views]
    serving = sum(part.get("serving_cpu_seconds", 0.0) for part in parts)
    return charge(epochs, edges, serving, meter)


def _memory(part: Part) -> Memory | None:
    """Of a process that serves others, all is as it was in the end."""
    baseline, final = part.get("baseline_bytes"), part.get("resident")
    if baseline is None or final is None:
        return None
    first = next((view["resident"] for view in part["epochs"] if view.get("resident")), final)
    return Memory(
        baseline_bytes=baseline, steady_bytes=first["own_bytes"], peak_bytes=first["peak_bytes"],
        final_bytes=final["own_bytes"],
    )  # fmt: skip


def _settled(ranks: list[tuple[float, ...]]) -> dict[str, Any]:
    """When the durations of the steps settled, and at what."""
    slowest = [max(step) for step in zip(*ranks, strict=False)]
    if not slowest:
        return {}
    warm_up = warm_up_steps(slowest)
    return {"warm_up_steps": warm_up, "steady_step_seconds": median(slowest[warm_up:])}


def _traced(processes: Sequence[Process], parts: list[Part]) -> dict[str, Any]:
    """Of an instrumented run, where the time went; empty for the others."""
    spans: dict[int, list[Span]] = {}
    for process, part in zip(processes, parts, strict=True):
        for span in (Span(**span) for span in part.get("spans", ())):
            spans.setdefault(process.rank if span.worker is None else span.worker, []).append(span)
    if not any(spans.values()):
        return {}
    return {"breakdown": tuple(break_down(spans)), "trace": _kept_trace(spans)}


def _kept_trace(spans: dict[int, list[Span]]) -> tuple[TraceSpan, ...]:
    """The last steps of every rank."""
    steps = sorted((span for own in spans.values() for span in own if span.kind == "step"), key=lambda span: span.start)
    ranks = sum(any(span.kind == "step" for span in own) for own in spans.values())
    kept = steps[-TRACED_STEPS * max(1, ranks) :]
    begin, end = kept[0].start, max(span.end for span in kept)
    return tuple(
        TraceSpan(
            rank=rank, track=span.track, kind=span.kind, name=span.name, bytes=span.bytes,
            start=(span.start - begin) / 1e3, duration=(span.end - span.start) / 1e3,
        )
        for rank, own in spans.items()
        for span in own
        if span.start >= begin and begin < span.end <= end
    )  # fmt: skip


def _epoch(views: list[Part], base: Record, number: int) -> Epoch:
    """Wall clock from the first rank's start to the last rank's end; sums of what each rank evaluated."""
    seconds = (max(view["ended"] for view in views) - min(view["stamps"][0] for view in views)) / 1e9
    losses = _mean_losses(views)
    steps = max(len(losses), *(len(view["stamps"]) - 1 for view in views))
    tested = [view["evaluation"] for view in views if view["evaluation"]]
    samples, predictions = (sum(test[name] or 0 for test in tested) for name in ("samples", "predictions"))
    train_loss, test_loss = _mean(losses), sum(test["loss_sum"] for test in tested) / samples if samples else None
    return Epoch(
        number=number + 1,
        seconds=seconds,
        steps=steps,
        samples=steps * base.spec.samples_per_step,
        cpu_seconds=sum(view["cpu_seconds"] for view in views),
        train_loss=_finite(train_loss),
        test_loss=_finite(test_loss),
        test_accuracy=sum(test["correct"] or 0 for test in tested) / predictions if predictions else None,
        evaluation_seconds=max(view.get("evaluation_seconds", 0.0) for view in views),
    )


def _mean_losses(views: list[Part]) -> list[float]:
    """Equal shares of each global batch: the plain mean over the ranks that know a loss."""
    known = [view["losses"] for view in views if view["losses"] is not None]
    return [sum(losses) / len(losses) for losses in zip(*known, strict=False)]


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _steps(part: Part) -> tuple[float, ...]:
    return tuple(
        (after - before) / 1e9
        for view in part["epochs"]
        for before, after in zip(view["stamps"], view["stamps"][1:], strict=False)
    )


def _startup(parts: list[Part], launched: int) -> Startup:
    slowest = max((part for part in parts if part["epochs"]), key=lambda part: part["opened"])
    stamps = slowest["epochs"][0]["stamps"]
    return Startup(
        launch_seconds=(slowest["started"] - launched) / 1e9,
        import_seconds=(slowest["imported"] - slowest["started"] + slowest.get("imported_before", 0)) / 1e9,
        build_seconds=(slowest["opened"] - slowest["imported"]) / 1e9,
        first_step_seconds=(stamps[1] - stamps[0]) / 1e9,
        forked=slowest.get("imported_before", 0) > 0,
    )


def _loss_finding(losses: list[float]) -> list[Finding]:
    bad = next((step for step, loss in enumerate(losses) if not math.isfinite(loss)), None)
    if bad is None:
        return []
    return [
        Finding(
            code="loss_not_finite",
            text=f"the loss is not a finite number from step {bad + 1} on",
            hint="its times are kept; lower the learning rate or look at the data before trusting its accuracy",
        )
    ]


def _first_epoch_finding(epochs: tuple[Epoch, ...]) -> list[Finding]:
    if len(epochs) < 2 or epochs[0].steps != epochs[1].steps or not epochs[1].seconds:
        return []
    if epochs[0].seconds < SLOW_FIRST_EPOCH * epochs[1].seconds:
        return []
    ratio = epochs[0].seconds / epochs[1].seconds
    return [
        Finding(
            code="slow_first_epoch",
            text=f"the first epoch took {ratio:.2f} times as long as the second",
            hint="compare second epochs; the first one carries warm-up",
        )
    ]
