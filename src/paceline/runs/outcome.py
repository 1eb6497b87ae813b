"""What the processes left ─► the run's record: how it ended and why, and the results of all ranks put together."""

import math
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Any

from paceline.breakdown import break_down
from paceline.contract.context import Process
from paceline.contract.job import Evaluation, GradientSquares
from paceline.costs.noise_scale import noise_interval, noise_scale
from paceline.plan import PlannedRun
from paceline.record import (
    Energy,
    Epoch,
    Finding,
    GradientNoise,
    Look,
    Memory,
    Rank,
    Record,
    Startup,
    Status,
    TimelineSpan,
)
from paceline.runs.loading import loading_findings, loading_of, waits_of
from paceline.runs.meters.energy import EnergyMeter, charge
from paceline.runs.one_clock import clock_finding, on_one_clock
from paceline.runs.pauses.target import target_findings
from paceline.runs.scripts.outcome import epoch_samples, missing_steps, script_findings, silent_end
from paceline.runs.surroundings import Surroundings, machine_records
from paceline.runs.wire import DATA_DIGEST, EpochResult, RankError, RankResult
from paceline.spans import Span
from paceline.spec import RunSpec
from paceline.strategies import strategy
from paceline.systems.nccl import SLICE_TRANSPORT, SLICE_TRANSPORT_REASON
from paceline.units import format_names
from paceline.warm_up import warm_up_steps

# An epoch this much slower than the one after it carries start-up costs worth naming.
SLOW_FIRST_EPOCH = 1.2
# A timeline of more steps than this is larger without saying more.
TIMELINE_STEPS = 3


@dataclass(frozen=True)
class Ending:
    """How the processes ended: their exit codes before any was killed, and what each left."""

    codes: Sequence[int | None]
    # Why the launcher ended the run itself; None where it did not.
    verdict: Status | None = None
    timeout_seconds: float = 0.0
    reports: Sequence[RankResult | RankError | None] = ()
    log_tails: Sequence[str] = ()
    # Why machines of the fleet were lost, in words.
    troubles: Sequence[str] = ()

    @property
    def results(self) -> list[RankResult]:
        """The results of processes that ended well."""
        return [report for report in self.reports if isinstance(report, RankResult)]

    @property
    def longest_run_queue_share(self) -> float:
        """The longest share of its time that a process waited for a core."""
        return max((result.run_queue_share or 0.0 for result in self.results), default=0.0)


def make_record(
    run: PlannedRun, study: str, processes: Sequence[Process], ending: Ending, surroundings: Surroundings
) -> Record:
    """The record of a run that was started."""
    clocks = [machine.clock for machine in surroundings.machines]
    job_clock = strategy(run.spec.strategy).traits.keeps_own_clock
    ending = replace(ending, reports=on_one_clock(ending.reports, processes, clocks, job_clock))
    status, reason, culprit = classify(ending, processes)
    if status is Status.OK and (unseen := missing_steps(run.spec, ending.results)) is not None:
        status, reason = Status.FAILED, unseen
    if status is Status.FAILED and ending.codes[culprit] == 0 and ending.reports[culprit] is None:
        reason = f"{reason}{silent_end(run.spec)}"
    measured = _measured_fields(run.spec, processes, ending.results, surroundings) if status is Status.OK else {}
    return Record(
        study=study, spec=run.spec, repeat=run.repeat, status=status, reason=reason,
        started_at=surroundings.started_at, wall_seconds=surroundings.wall_seconds,
        findings=(*surroundings.findings, *measured.pop("findings", ())), environment=surroundings.environment,
        gpus=surroundings.gpus, parameters=surroundings.parameters, machines=machine_records(surroundings.machines),
        log_tail="" if status is Status.OK and run.spec.script is None else ending.log_tails[culprit], **measured,
    )  # fmt: skip


def classify(ending: Ending, processes: Sequence[Process]) -> tuple[Status, str | None, int]:
    """Status, reason in words, and the rank whose log tells most. A signal explains more than the errors it causes."""
    if ending.verdict is not None:
        late = f"did not end within {ending.timeout_seconds:g} s (timeout_seconds)"
        return ending.verdict, late if ending.verdict is Status.TIMED_OUT else "interrupted by the user", 0
    if ending.troubles:
        return Status.FAILED, "; ".join(ending.troubles), 0
    for rank, code in enumerate(ending.codes):
        if code is not None and code < 0:
            # Real-time signals have no name.
            name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
            return Status.FAILED, f"{_rank_name(processes[rank])} was killed by {name}", rank
    errors = [(report, rank) for rank, report in enumerate(ending.reports) if isinstance(report, RankError)]
    if errors:
        error, rank = min(errors, key=lambda pair: (pair[0].failed_at, pair[1]))
        return _from_error(error, processes[rank])
    silent = [rank for rank, code in enumerate(ending.codes) if code]
    silent += [rank for rank, report in enumerate(ending.reports) if report is None]
    if silent:
        name, code = _rank_name(processes[silent[0]]), ending.codes[silent[0]]
        return Status.FAILED, f"{name} ended with exit code {code} and no result", silent[0]
    unlike = _unlike_data(processes, ending.results)
    return (Status.OK, None, 0) if unlike is None else (Status.FAILED, unlike, 0)


def _unlike_data(processes: Sequence[Process], results: Sequence[RankResult]) -> str | None:
    """Why a run failed whose processes trained on different data on different machines, or None."""
    digests = {
        result.notes[DATA_DIGEST]: process.place.name
        for process, result in zip(processes, results, strict=True)
        if DATA_DIGEST in result.notes
    }
    if len(digests) < 2:
        return None
    return f"the data on {format_names(sorted(digests.values()))} differ; put the same files on both and run it again"


def _rank_name(process: Process) -> str:
    """`rank 1 (worker)`, and on which machine of a fleet."""
    where = f" on {process.place.name}" if process.place.name else ""
    return f"rank {process.rank} ({process.role}){where}"


def _from_error(error: RankError, process: Process) -> tuple[Status, str, int]:
    if error.kind == "user_error":
        # What is wrong may be so on that machine alone.
        where = f"on machine {process.place.name}: " if process.place.name else ""
        return Status.FAILED, f"{where}{error.text}", process.rank
    words = f"{error.type}: {error.text}" if error.text else error.type
    status = Status.OUT_OF_MEMORY if error.kind == "out_of_memory" else Status.FAILED
    return status, f"{_rank_name(process)}: {words}", process.rank


def _measured_fields(
    spec: RunSpec, processes: Sequence[Process], results: list[RankResult], surroundings: Surroundings
) -> dict[str, Any]:
    """The fields of the record of a run that went well."""
    trained = [result.measured.epochs for result in results if result.measured.epochs]
    # Of each epoch, the views of all ranks that train.
    views = [list(epoch) for epoch in zip(*trained, strict=spec.script is None)]
    epochs = tuple(_epoch(epoch, spec, number) for number, epoch in enumerate(views, start=1))
    losses = [loss for epoch in views for loss in _mean_losses(epoch)]
    charged, energy = _charged(spec, epochs, views, results, surroundings.energy)
    ranks = list(zip(processes, results, strict=True))
    steps = {process.rank: _steps(result) for process, result in ranks}
    settled = _settled([seconds for seconds in steps.values() if seconds])
    loading = [loading_of(result, steps[process.rank], settled.get("warm_up_steps", 0)) for process, result in ranks]
    waits = {process.rank: seconds for process, result in ranks if (seconds := waits_of(result))}
    compared = spec.instrumented and not strategy(spec.strategy).traits.keeps_own_clock
    clocks = [machine.clock for machine in surroundings.machines] if compared else []
    apart = clock_finding(clocks, [seconds for rank_steps in steps.values() for seconds in rank_steps])
    looks = _looks(results)
    return {
        "startup": startup_of(results, surroundings.launched),
        "epochs": charged,
        "energy": energy,
        "ranks": tuple(
            rank_record(process, result).model_copy(update={"loading": read})
            for (process, result), read in zip(ranks, loading, strict=True)
        ),
        "losses": tuple(loss if math.isfinite(loss) else None for loss in losses),
        "looks": looks,
        "step_seconds": steps,
        "input_seconds": waits,
        "findings": [
            *_loss_finding(losses), *_first_epoch_finding(epochs), *_slow_link_finding(spec, results),
            *([apart] if apart is not None else []), *script_findings(spec, results),
            *loading_findings(spec, results, loading), *target_findings(spec, looks),
        ],
        **settled,
        **({} if apart is not None else _instrumented_fields(processes, results)),
    }  # fmt: skip


def rank_record(process: Process, result: RankResult) -> Rank:
    """A process of the run and what it measured."""
    measured = result.measured
    shares = {"run_queue_share": result.run_queue_share, "serving_cpu_seconds": measured.serving_cpu_seconds}
    known = {name: value for name, value in shares.items() if value is not None}
    return Rank(
        rank=process.rank, role=process.role, cores=process.cores, cpu_seconds=measured.cpu_seconds,
        peak_memory_bytes=measured.peak_memory_bytes, memory=_memory(result),
        details={**measured.details, **result.notes, **known}, machine=process.place.name,
        checkpoint=measured.checkpoint,
    )  # fmt: skip


def _charged(
    spec: RunSpec, epochs: tuple[Epoch, ...], views: list[list[EpochResult]], results: list[RankResult],
    meter: EnergyMeter | None,
) -> tuple[tuple[Epoch, ...], Energy | None]:  # fmt: skip
    """The epochs with their joules and where those come from; an instrumented run has no epochs worth charging."""
    if spec.instrumented:
        return epochs, None
    # With the time of saving, which the counter cannot tell from that of training.
    edges = [
        (min(view.stamps[0] for view in ranks), max(view.ended + view.paused for view in ranks)) for ranks in views
    ]
    serving = sum(result.measured.serving_cpu_seconds or 0.0 for result in results)
    return charge(epochs, edges, serving, meter)


def _memory(result: RankResult) -> Memory | None:
    """The memory of a process; for one that serves others, all values are those at its end."""
    baseline, final = result.start.baseline_bytes, result.measured.resident
    if baseline is None or final is None:
        return None
    first = next((view.resident for view in result.measured.epochs if view.resident), final)
    return Memory(
        baseline_bytes=baseline, steady_bytes=first.current_bytes, peak_bytes=first.peak_bytes,
        final_bytes=final.current_bytes,
    )  # fmt: skip


def _settled(ranks: list[tuple[float, ...]]) -> dict[str, Any]:
    """When step durations settled, and at which duration."""
    slowest = [max(step) for step in zip(*ranks, strict=False)]
    if not slowest:
        return {}
    warm_up = warm_up_steps(slowest)
    return {"warm_up_steps": warm_up, "steady_step_seconds": median(slowest[warm_up:])}


def _instrumented_fields(processes: Sequence[Process], results: list[RankResult]) -> dict[str, Any]:
    """The breakdown and the timeline of an instrumented run; empty for the others."""
    spans: dict[int, list[Span]] = {}
    for process, result in zip(processes, results, strict=True):
        for span in result.measured.spans:
            spans.setdefault(process.rank if span.worker is None else span.worker, []).append(span)
    return {"breakdown": tuple(break_down(spans)), "timeline": _timeline(spans)} if spans else {}


def _timeline(spans: dict[int, list[Span]]) -> tuple[TimelineSpan, ...]:
    """The last steps of every rank."""
    steps = [span for rank in spans.values() for span in rank if span.kind == "step"]
    steps.sort(key=lambda span: span.start)
    ranks = sum(any(span.kind == "step" for span in rank) for rank in spans.values())
    kept = steps[-TIMELINE_STEPS * max(1, ranks) :]
    begin, end = kept[0].start, max(span.end for span in kept)
    return tuple(
        TimelineSpan(
            rank=rank, track=span.track, kind=span.kind, name=span.name, bytes=span.bytes,
            start=(span.start - begin) / 1e3, duration=(span.end - span.start) / 1e3,
        )
        for rank, rank_spans in spans.items()
        for span in rank_spans
        if span.start >= begin and begin < span.end <= end
    )  # fmt: skip


def _epoch(views: list[EpochResult], spec: RunSpec, number: int) -> Epoch:
    """Wall clock from the first rank's start to the last rank's end; sums of what each rank evaluated."""
    seconds = (max(view.ended for view in views) - min(view.stamps[0] for view in views)) / 1e9
    losses = _mean_losses(views)
    steps = max(len(losses), *(len(view.stamps) - 1 for view in views))
    return Epoch(
        number=number,
        seconds=seconds,
        steps=steps,
        samples=epoch_samples(spec, views, steps),
        cpu_seconds=sum(view.cpu_seconds for view in views),
        train_loss=_finite(sum(losses) / len(losses)) if losses else None,
        **evaluated([view.evaluation for view in views if view.evaluation]),
        evaluation_seconds=max(view.evaluation_seconds for view in views),
        noise=_noise([view.gradients for view in views if view.gradients is not None]),
    )


def _noise(views: list[GradientSquares]) -> GradientNoise | None:
    """The noise of an epoch's gradients: parts are averaged over ranks, the whole is the same on each."""
    if not views or not views[0].big_squares:
        return None
    small, big = views[0].small_batch, views[0].big_batch
    small_squares = [sum(parts) / len(parts) for parts in zip(*(view.small_squares for view in views), strict=True)]
    means = sum(small_squares) / len(small_squares), sum(views[0].big_squares) / len(small_squares)
    low, high = noise_interval(small, big, small_squares, views[0].big_squares)
    return GradientNoise(
        small_batch=small, big_batch=big, small_square=means[0], big_square=means[1], steps=len(small_squares),
        scale=noise_scale(small, big, *means), low=low, high=high,
    )  # fmt: skip


def _looks(results: list[RankResult]) -> tuple[Look, ...]:
    """What all ranks together found after each step at which they looked."""
    by_step: dict[int, list[Evaluation]] = {}
    for result in results:
        for look in result.measured.looks:
            by_step.setdefault(look.step, []).extend([look.evaluation] if look.evaluation is not None else [])
    values = {step: evaluated(tests) for step, tests in sorted(by_step.items()) if tests}
    return tuple(
        Look(step=step, test_loss=value["test_loss"], test_accuracy=value["test_accuracy"])
        for step, value in values.items()
    )


def evaluated(tests: Sequence[Evaluation]) -> dict[str, Any]:
    """Loss, accuracy and metrics over the parts of the test set that ranks looked at."""
    samples, predictions = sum(test.samples for test in tests), sum(test.predictions or 0 for test in tests)
    return {
        "test_loss": _finite(sum(test.loss_sum for test in tests) / samples) if samples else None,
        "test_accuracy": sum(test.correct or 0 for test in tests) / predictions if predictions else None,
        "test_metrics": {
            name: _finite(sum(test.metric_sums.get(name, 0.0) for test in tests) / samples)
            for name in dict.fromkeys(name for test in tests for name in test.metric_sums)
        },
    }


def _mean_losses(views: list[EpochResult]) -> list[float]:
    """Equal shares of each global batch: the plain mean over the ranks that know a loss."""
    known = [view.losses for view in views if view.losses is not None]
    return [sum(losses) / len(losses) for losses in zip(*known, strict=False)]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _steps(result: RankResult) -> tuple[float, ...]:
    return tuple((after - before) / 1e9 for view in result.measured.epochs for before, after in pairwise(view.stamps))


def startup_of(results: list[RankResult], launched: int) -> Startup:
    """Where the seconds before the first step ended went, for the process that was ready last."""
    slowest = max((result for result in results if result.measured.epochs), key=lambda result: result.start.opened)
    start, stamps = slowest.start, slowest.measured.epochs[0].stamps
    return Startup(
        launch_seconds=(start.started - launched) / 1e9,
        import_seconds=(start.imported - start.started + start.shared_import_nanoseconds) / 1e9,
        build_seconds=(start.opened - start.imported) / 1e9,
        first_step_seconds=(stamps[1] - stamps[0]) / 1e9,
        forked=start.shared_import_nanoseconds > 0,
    )


def _loss_finding(losses: list[float]) -> list[Finding]:
    bad = next((step for step, loss in enumerate(losses) if not math.isfinite(loss)), None)
    if bad is None:
        return []
    text = f"the loss is not a finite number from step {bad + 1} on"
    hint = "its times are kept; lower the learning rate or look at the data before trusting its accuracy"
    return [Finding(code="loss_not_finite", text=text, hint=hint)]


def _first_epoch_finding(epochs: tuple[Epoch, ...]) -> list[Finding]:
    if len(epochs) < 2 or epochs[0].steps != epochs[1].steps or not epochs[1].seconds:
        return []
    if epochs[0].seconds < SLOW_FIRST_EPOCH * epochs[1].seconds:
        return []
    text = f"the first epoch took {epochs[0].seconds / epochs[1].seconds:.2f} times as long as the second"
    hint = "compare second epochs; the first one carries warm-up"
    return [Finding(code="slow_first_epoch", text=text, hint=hint)]


def _slow_link_finding(spec: RunSpec, results: list[RankResult]) -> list[Finding]:
    """A finding where slices used sockets although nobody asked for them."""
    slow = [result.notes for result in results if result.notes.get(SLICE_TRANSPORT) == "socket"]
    if not slow or spec.transport == "socket":
        return []
    text = f"slices of the GPU talked over loopback sockets: {slow[0][SLICE_TRANSPORT_REASON]}"
    hint = "its transfers are those of a slow network; paceline doctor says how slices get a fast link"
    return [Finding(code="slices_over_sockets", text=text, hint=hint)]
