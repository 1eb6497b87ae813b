"""What reading batches while training goes on cost a run, and what would keep up with it, in numbers and words."""

from collections.abc import Sequence
from statistics import fmean

from paceline.data.sources import INDEXED, SOURCE_WORDS, SourceKind
from paceline.record import OWN_ORDER, Finding, Loading
from paceline.runs.wire import RankResult
from paceline.spec import RunSpec
from paceline.strategies import strategy_of_stored
from paceline.units import format_percent, format_seconds

# The note of a process that says how its data came.
SOURCE = "data_source"
INPUT_BOUND = "input_bound"
DECIMALS = 7
# More loader processes than this for a worker are no advice.
MOST_PROCESSES = 32


def waits_of(result: RankResult) -> tuple[float, ...]:
    """Seconds that a rank waited for its batch, in each step; none where all its data lay on the device."""
    inputs = [view.input for view in result.measured.epochs if view.input is not None]
    return tuple(round(wait / 1e9, DECIMALS) for each in inputs for wait in each.waits)


def loading_of(result: RankResult, step_seconds: Sequence[float], warm_up: int) -> Loading | None:
    """What batches cost a rank in its steps after warm-up; None where all its data lay on the device."""
    waits = waits_of(result)[warm_up:]
    inputs = [view.input for view in result.measured.epochs if view.input is not None]
    if not waits:
        return None
    read, batches = sum(each.read or 0 for each in inputs), sum(each.batches for each in inputs)
    is_known = batches and all(each.read is not None for each in inputs)
    return Loading(
        processes=inputs[-1].processes, wait_seconds=fmean(waits), step_seconds=fmean(step_seconds[warm_up:]),
        read_seconds=read / batches / 1e9 if is_known else None,
    )  # fmt: skip


def slowest_loading(ranks: Sequence[Loading | None]) -> Loading | None:
    """How the rank that waited longest for its batches loads them; None where no rank read any."""
    return max((rank for rank in ranks if rank is not None), key=lambda rank: rank.wait_seconds, default=None)


def wait_text(loading: Loading) -> str:
    """What was waited for, such as: waiting for the batch takes 62 % of a step (10.2 ms of 16.4 ms)."""
    wait, step = format_seconds(loading.wait_seconds), format_seconds(loading.step_seconds)
    return f"waiting for the batch takes {format_percent(loading.share)} of a step ({wait} of {step})"


def keeping_up(loading: Loading, spec: RunSpec) -> str:
    """What would keep up with the training, in words."""
    enough, chosen = loading.enough_processes, strategy_of_stored(spec.strategy)
    seconds = loading.read_seconds
    read = None if seconds is None else f"one process reads a batch in {format_seconds(seconds)}"
    if chosen is not None and not chosen.needs.loader_processes:
        unaided = f"nobody reads ahead for {chosen.name}: prepare samples beforehand, or have the source prefetch"
        return unaided if read is None else f"{read}, and {unaided}"
    if enough <= loading.processes:
        more = f"{processes_text(loading.processes)} would keep up if they had cores of their own"
        more += "; give --cores-per-worker more"
    elif enough > MOST_PROCESSES:
        more = f"it would take {processes_text(enough)} for each worker: prepare samples beforehand, as mapped arrays"
    else:
        more = f"{processes_text(enough)} for each worker would keep up (--loader-workers {enough})"
    return more if read is None else f"{read}, so {more}"


def processes_text(count: int) -> str:
    """`1 loader process`, `2 loader processes`."""
    return f"{count} loader process" + ("es" if count > 1 else "")


def loading_findings(spec: RunSpec, results: Sequence[RankResult], ranks: Sequence[Loading | None]) -> list[Finding]:
    """What a reader must know beside the numbers of a run whose data were read while it trained."""
    findings = []
    kinds: list[SourceKind] = [result.notes[SOURCE] for result in results if SOURCE in result.notes]
    if kinds and kinds[0] not in INDEXED:
        findings.append(
            Finding(
                code=OWN_ORDER,
                text=f"the data are {SOURCE_WORDS[kinds[0]]}, in an order of its own: other strategies and worker "
                f"counts did not train on the same samples in the same order",
                hint="compare times and not losses; a data set of samples (__getitem__, __len__) has one order for all",
            )
        )
    slowest = slowest_loading(ranks)
    if slowest is not None and slowest.limits:
        findings.append(
            Finding(
                code=INPUT_BOUND,
                text=f"reading data, not the strategy, sets the pace: {wait_text(slowest)}",
                hint=keeping_up(slowest, spec),
            )
        )
    return findings
