"""Fits the few numbers that no data sheet has to logged runs ─► a system file that predicts such runs.

The numbers are those of the predictor itself, so that every command uses them. Robust least squares on the logarithm of
predicted over logged seconds; a number that the runs say nothing about stays where the description has it. How good the
fit is, is told by runs that it has not seen: folds of a cross-validation, which also make the intervals.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, exp, hypot, log
from random import Random
from typing import Any

from paceline.costs.footprint import Footprint
from paceline.errors import SpecError, UserError
from paceline.predict.against import Clocks, ComparedRun, Comparison, compare, nodes_of, predictors_of
from paceline.predict.estimate import NORMAL_90, Estimate
from paceline.predict.logged import LoggedRun
from paceline.predict.operations import peak_of
from paceline.strategies import strategy
from paceline.systems.files import load_hardware, shipped_systems
from paceline.systems.hardware import Hardware, Quantity
from paceline.systems.software import AttentionKernel, Software

FOLDS = 5
TERA = 1e12
# How names of systems begin: `a100` of `a100-nvlink`.
GPU_NAME = re.compile(r"[a-z]+[0-9]+")
# Fewer runs cannot tell so many numbers apart.
LEAST_RUNS = 20
# With fewer runs of a kind than this, their intervals are those of all runs together.
LEAST_FOR_INTERVAL = 30
# Of logarithms: an error beyond this counts in proportion, not squared; and the step of numerical derivatives, over
# which kinks of the predictor (hosts or links taking over) are smoothed.
ROBUST, DERIVATIVE_STEP = 0.1, 0.01
# Moving a number by its spread weighs as much as one run that is so far off.
WORTH_OF_DESCRIPTION = 0.05
# A run of the rarer kind, within a node or over several, weighs at most so many times as much.
MOST_WEIGHT = 2.0
# Hosts of some software take several times as long as described.
HOST_FACTORS = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
# Steps of the search; from a fit of nearly the same runs fewer are enough.
MOST_STEPS, MOST_STEPS_AGAIN = 20, 4


@dataclass(frozen=True)
class FittedNumber:
    """One fitted number: its start, its allowed deviation (log of a factor), and its bounds."""

    name: str
    spread: float
    least: float
    most: float
    start: Callable[[Hardware], float]
    place: Callable[[Hardware, float, str], Hardware]
    # Whether it is about what a rank computes, which is worked out once for all numbers that are not.
    of_passes: bool = False


def _of_device(name: str) -> Callable[[Hardware, float, str], Hardware]:
    def put(hardware: Hardware, value: float, source: str) -> Hardware:
        device = hardware.device.model_copy(update={name: Quantity(value=value, source=source)})
        return hardware.model_copy(update={"device": device})

    return put


def _of_link(side: str, name: str) -> Callable[[Hardware, float, str], Hardware]:
    def put(hardware: Hardware, value: float, source: str) -> Hardware:
        link = getattr(hardware, side).model_copy(update={name: Quantity(value=value, source=source)})
        return hardware.model_copy(update={side: link})

    return put


def _of_software(name: str) -> Callable[[Hardware, float, str], Hardware]:
    def put(hardware: Hardware, value: float, _source: str) -> Hardware:
        assert hardware.software is not None
        return hardware.model_copy(update={"software": hardware.software.model_copy(update={name: value})})

    return put


def _host_seconds(hardware: Hardware, value: float, source: str) -> Hardware:
    each = {**hardware.device.host_seconds_per_operation, "eager": Quantity(value=value, source=source)}
    device = hardware.device.model_copy(update={"host_seconds_per_operation": each})
    return hardware.model_copy(update={"device": device})


# Spreads and bounds are ours: efficiencies are known within a third, links within half, hosts hardly at all.
FITTED = (
    FittedNumber(
        "product_efficiency", 0.3, 0.1, 1.0, lambda hardware: hardware.device.product_efficiency.value,
        _of_device("product_efficiency"), of_passes=True,
    ),
    FittedNumber(
        "half_rate_flops", 1.5, 1e7, 1e11, lambda hardware: hardware.device.half_rate_flops.value,
        _of_device("half_rate_flops"), of_passes=True,
    ),
    FittedNumber(
        "memory_efficiency", 0.4, 0.1, 1.0, lambda hardware: hardware.device.memory_efficiency.value,
        _of_device("memory_efficiency"), of_passes=True,
    ),
    FittedNumber(
        "host_seconds_per_operation", 1.0, 1e-7, 1e-3,
        lambda hardware: hardware.device.host_seconds_per_operation["eager"].value, _host_seconds,
        of_passes=True,
    ),
    FittedNumber(
        "host_share_per_split", 1.0, 1e-3, 0.3, lambda _hardware: 0.02, _of_software("host_share_per_split"),
        of_passes=True,
    ),
    FittedNumber(
        "inner.bytes_per_second", 0.5, 1e8, 1e12, lambda hardware: hardware.inner.bytes_per_second.value,
        _of_link("inner", "bytes_per_second"),
    ),
    FittedNumber(
        "inner.latency_seconds", 1.0, 1e-7, 1e-3, lambda hardware: hardware.inner.latency_seconds.value,
        _of_link("inner", "latency_seconds"),
    ),
    FittedNumber(
        "outer.bytes_per_second", 0.5, 1e7, 1e12, lambda hardware: hardware.outer.bytes_per_second.value,
        _of_link("outer", "bytes_per_second"),
    ),
    FittedNumber("step_seconds", 1.0, 1e-5, 1.0, lambda _hardware: 3e-3, _of_software("step_seconds")),
    FittedNumber("hidden_share", 1.0, 0.05, 1.0, lambda _hardware: 0.5, _of_software("hidden_share")),
)  # fmt: skip


@dataclass(frozen=True)
class FittedLog:
    """The system with its fitted numbers, and how well runs were predicted that a fit had not seen."""

    hardware: Hardware
    numbers: dict[str, float]
    # Of the runs that were fitted, each predicted by a fit of the other folds; and those kept out of all of it.
    cross_validated: Comparison
    held_out: Comparison | None
    # Whether the kind of attention was chosen by the fit.
    attention_chosen: bool
    refused: dict[str, str]


def fit_log(
    runs: Sequence[LoggedRun], described: Hardware, *, source: str, hold_out: float = 0.0, seed: int = 0,
    attention: AttentionKernel | None = None, assumed: dict[str, str] | None = None,
    say: Callable[[str], None] = lambda _text: None,
) -> FittedLog:  # fmt: skip
    """Fits runs, all but a random share of them; of the kinds of attention, unless one is given, what fits better."""
    usable, refused = _usable(runs, described)
    mixed = Random(seed).sample(usable, len(usable))
    kept = len(mixed) - round(len(mixed) * hold_out)
    fitted, held_out = mixed[:kept], mixed[kept:]
    if len(fitted) < LEAST_RUNS:
        raise SpecError(
            f"{len(fitted)} runs of {source} can be fitted and {len(FITTED)} numbers want at least {LEAST_RUNS}; "
            f"log more runs, or hold fewer out"
        )
    kinds: tuple[AttentionKernel, ...] = (attention,) if attention else ("unfused", "fused")
    fits: list[tuple[list[float], float, Hardware]] = []
    for kind in kinds:
        say(f"fitting {len(fitted)} runs with {kind} attention")
        start = _started(described, kind, source, assumed or {})
        near = fits[0][0] if fits else None
        fits.append((*_fit(fitted, start, near, MOST_STEPS_AGAIN if near else MOST_STEPS), start))
    values, _, start = min(fits, key=lambda fit: fit[1])
    say(f"cross-validating in {FOLDS} folds")
    seen_by_others = _cross_validate(fitted, start, values)
    hardware = _with_deviation(_placed(start, values, source), seen_by_others)
    rows = tuple(replace(row, predicted=_interval(row, hardware)) for row in seen_by_others)
    text = _described_fit(source, fitted, held_out, seed, Comparison(rows, {}))
    hardware = _placed(hardware, values, f"fitted to {len(fitted)} runs of {source}, see software")
    assert hardware.software is not None
    hardware = hardware.model_copy(update={"software": hardware.software.model_copy(update={"source": text})})
    return FittedLog(
        hardware, {number.name: value for number, value in zip(FITTED, values, strict=True)}, Comparison(rows, {}),
        compare([run for run, _ in held_out], hardware) if held_out else None, attention is None, refused,
    )  # fmt: skip


Prepared = tuple[LoggedRun, Footprint]


# Bytes per second of a link within a node, from which on it is NVLink or the like: PCIe has less.
FAST_LINK = 1e11


def system_that_fits(runs: Sequence[LoggedRun], name: str = "") -> Hardware:
    """The slowest described GPU that can have made all runs, with the most devices per node.

    A GPU that the log's name has in it, as `megatron-a100` has, is taken before others.
    """
    systems = [load_hardware(system) for system in shipped_systems()]
    rates, precision = [_flops_per_second(run) for run in runs], runs[0].spec.precision
    able = [
        hardware for hardware in systems
        if hardware.kind == "cuda" and max(rates) <= peak_of(hardware.device, precision)
    ]  # fmt: skip
    if not able:
        raise SpecError(
            f"{runs[rates.index(max(rates))].name} computed {max(rates) / TERA:.0f} Tflop/s on each GPU, more than any "
            f"described system can; correct its row, or give --system"
        )
    if any(run.spec.layout is not None and run.spec.layout.tensor > 1 for run in runs):
        # Nobody splits layers over a slow link.
        able = [hardware for hardware in able if hardware.inner.bytes_per_second.value >= FAST_LINK] or able
    named = [hardware for hardware in able if (gpu := GPU_NAME.match(hardware.name)) and gpu[0] in name.lower()]
    slowest = min(peak_of(hardware.device, precision) for hardware in able)
    fitting = named or [hardware for hardware in able if peak_of(hardware.device, precision) == slowest]
    # Of like ones that with the plainest name.
    return max(fitting, key=lambda each: (each.node_devices, each.inner.bytes_per_second.value, -len(each.name)))


def _flops_per_second(run: LoggedRun) -> float:
    """Operations per second of each device, recomputation included."""
    footprint = strategy(run.spec.strategy).footprint(run.spec, run.model)
    return sum(group.flops * group.ranks for group in footprint.groups) / run.spec.workers / run.step_seconds


def _usable(runs: Sequence[LoggedRun], hardware: Hardware) -> tuple[list[Prepared], dict[str, str]]:
    """Runs with their footprints, which the fit does not change; runs without one are refused."""
    usable: list[Prepared] = []
    refused: dict[str, str] = {}
    for run, predictor in predictors_of(runs, hardware):
        try:
            footprint = strategy(run.spec.strategy).footprint(run.spec, run.model)
            predictor.parts(run.spec, footprint)
        except (UserError, ValueError) as error:
            refused[run.name] = str(error)
        else:
            usable.append((run, footprint))
    return usable, refused


def _started(described: Hardware, attention: AttentionKernel, source: str, assumed: dict[str, str]) -> Hardware:
    software = Software(source=f"being fitted to {source}", attention=attention, assumed=assumed)
    return described.model_copy(update={"software": software})


def _placed(hardware: Hardware, values: Sequence[float], source: str) -> Hardware:
    for number, value in zip(FITTED, values, strict=True):
        hardware = number.place(hardware, value, source)
    return hardware


def _log_errors(runs: Sequence[Prepared], hardware: Hardware, clocks: Clocks | None = None) -> list[float]:
    """Logarithms of predicted over logged seconds."""
    predictors = predictors_of([run for run, _ in runs], hardware, clocks)
    return [
        log(predictor.parts(run.spec, footprint).step / run.step_seconds)
        for (run, predictor), (_, footprint) in zip(predictors, runs, strict=True)
    ]


def _fit(
    runs: Sequence[Prepared], start: Hardware, near: Sequence[float] | None, most_steps: int
) -> tuple[list[float], float]:
    """The numbers that fit best, and what is left of the errors; `near` is a fit of nearly the same runs."""
    from scipy.optimize import least_squares

    described = [log(number.start(start)) for number in FITTED]
    weights = _weights(runs, start)
    clocks: dict[tuple[float, ...], Clocks] = {}

    def clocks_of(logs: Any) -> Clocks:
        key = tuple(float(value) for value, number in zip(logs, FITTED, strict=True) if number.of_passes)
        if key not in clocks:
            # Derivatives come back to the numbers before; nothing older does.
            while len(clocks) > 1:
                clocks.pop(next(reversed(clocks)))
            clocks[key] = {}
        return clocks[key]

    def residuals(logs: Any) -> list[float]:
        hardware = _placed(start, [exp(value) for value in logs], "a number that is being fitted")
        errors = [
            weight * error for weight, error in zip(weights, _log_errors(runs, hardware, clocks_of(logs)), strict=True)
        ]
        moved = (
            WORTH_OF_DESCRIPTION * (value - usual) / number.spread
            for value, usual, number in zip(logs, described, FITTED, strict=True)
        )
        return [*errors, *moved]

    low, high = [log(number.least) for number in FITTED], [log(number.most) for number in FITTED]
    # A search does not start on a bound.
    first = [log(value) for value in near] if near else _with_busy_hosts(residuals, described)
    first = [
        min(max(value, least + DERIVATIVE_STEP), most - DERIVATIVE_STEP)
        for value, least, most in zip(first, low, high, strict=True)
    ]
    fit = least_squares(
        residuals, first, bounds=(low, high), loss="soft_l1", f_scale=ROBUST, max_nfev=most_steps,
        jac=lambda logs: _derivatives(residuals, logs), x_scale=[number.spread for number in FITTED], xtol=1e-4,
    )  # fmt: skip
    return [exp(value) for value in fit.x], float(fit.cost)


def _with_busy_hosts(residuals: Callable[[Any], list[float]], described: Sequence[float]) -> list[float]:
    """A start with slow hosts: hosts faster than their devices have no effect, and so no gradient."""
    place = next(place for place, number in enumerate(FITTED) if number.place is _host_seconds)
    starts = [
        [value + log(factor) if index == place else value for index, value in enumerate(described)]
        for factor in HOST_FACTORS
    ]
    return min(starts, key=lambda start: sum(hypot(1, error / ROBUST) for error in residuals(start)))


def _derivatives(residuals: Callable[[Any], list[float]], logs: Any) -> Any:
    import numpy

    here, columns = numpy.array(residuals(logs)), []
    for place in range(len(logs)):
        moved = numpy.array(logs)
        moved[place] += DERIVATIVE_STEP
        columns.append((numpy.array(residuals(moved)) - here) / DERIVATIVE_STEP)
    return numpy.stack(columns, axis=1)


def _weights(runs: Sequence[Prepared], hardware: Hardware) -> list[float]:
    """Weights of runs: the rarer of single-node and multi-node runs weighs more."""
    within = [nodes_of(run, hardware) == 1 for run, _ in runs]
    weights = {}
    for kind in set(within):
        share = within.count(kind) / len(within)
        weights[kind] = min(MOST_WEIGHT, max(1.0, (1 / (2 * share)) ** 0.5))
    return [weights[kind] for kind in within]


def _cross_validate(runs: Sequence[Prepared], start: Hardware, values: Sequence[float]) -> list[ComparedRun]:
    """Predicts each run with numbers fitted without its fold."""
    rows: list[ComparedRun] = []
    for fold in range(FOLDS):
        others = [pair for place, pair in enumerate(runs) if place % FOLDS != fold]
        unseen = runs[fold::FOLDS]
        fitted, _ = _fit(others, start, values, MOST_STEPS_AGAIN)
        hardware = _placed(start, fitted, "a fit of the other folds")
        for (run, _), error in zip(unseen, _log_errors(unseen, hardware), strict=True):
            predicted = Estimate.around(run.step_seconds * exp(error), 0.0)
            rows.append(ComparedRun(run, predicted, nodes_of(run, hardware)))
    return rows


def _with_deviation(hardware: Hardware, rows: Sequence[ComparedRun]) -> Hardware:
    """The system with an uncertainty that covers nine of ten runs a fit had not seen."""
    together = _deviation(rows)
    kinds = [[row for row in rows if (row.nodes == 1) == within] for within in (True, False)]
    within_node, between_nodes = (_deviation(kind) if len(kind) >= LEAST_FOR_INTERVAL else together for kind in kinds)
    assert hardware.software is not None
    update = {"deviation": within_node, "several_nodes_deviation": between_nodes}
    return hardware.model_copy(update={"software": hardware.software.model_copy(update=update)})


def _deviation(rows: Sequence[ComparedRun]) -> float:
    sizes = sorted(abs(log(1 + row.error)) for row in rows)
    place = min(len(sizes), ceil(0.9 * (len(sizes) + 1))) - 1
    return sizes[place] / NORMAL_90


def _interval(row: ComparedRun, hardware: Hardware) -> Estimate:
    software = hardware.software
    assert software is not None
    deviation = software.deviation if row.nodes == 1 else software.several_nodes_deviation
    return Estimate.around(row.predicted.value, deviation)


def _described_fit(
    source: str, fitted: Sequence[Prepared], held_out: Sequence[Prepared], seed: int, comparison: Comparison
) -> str:
    errors = ", ".join(f"{summary.mean_error:.1%} {kind}" for kind, summary in comparison.by_nodes.items())
    kept = f", {len(held_out)} kept out (seed {seed})" if held_out else ""
    return f"fitted to {len(fitted)} runs of {source}{kept}; error by cross-validation {errors}"
