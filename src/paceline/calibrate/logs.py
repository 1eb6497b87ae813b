"""Fits the few numbers that no data sheet has to logged runs ─► a system file that predicts such runs.

The numbers are those of the predictor itself, so that every command uses them. Robust least squares on the logarithm of
predicted over logged seconds; a number that the runs say nothing about stays where the description has it. How good the
fit is, is told by runs that it has not seen: folds of a cross-validation, which also make the intervals.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, exp, log, pi, sqrt
from random import Random
from statistics import mean

from paceline.calibrate.log_fit import Fit, Prepared, block_of, fit_runs, log_errors
from paceline.calibrate.log_numbers import FITTED
from paceline.errors import SpecError, UserError
from paceline.predict.against import ComparedRun, Comparison, compare, nodes_of, predictors_of
from paceline.predict.estimate import NORMAL_90, Estimate
from paceline.predict.logged import LoggedRun
from paceline.predict.operations import peak_of
from paceline.strategies import strategy
from paceline.systems.files import load_hardware, shipped_systems
from paceline.systems.hardware import Hardware
from paceline.systems.software import AttentionKernel, Software

FOLDS = 5
TERA = 1e12
# How names of systems begin: `a100` of `a100-nvlink`.
GPU_NAME = re.compile(r"[a-z]+[0-9]+")
# Fewer runs cannot tell so many numbers apart.
LEAST_RUNS = 20
# With fewer runs of a kind than this, the tenth that is furthest off is chance.
LEAST_FOR_INTERVAL = 30
# Of an interval that nine of ten lie in, one of twenty is above.
NORMAL_90_QUANTILE = 0.95


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
    fits: list[tuple[Fit, Hardware]] = []
    for kind in kinds:
        say(f"fitting {len(fitted)} runs with {kind} attention")
        start = _started(described, kind, source, assumed or {})
        fits.append((fit_runs(fitted, start, fits[0][0] if fits else None), start))
    fit, start = min(fits, key=lambda each: each[0].cost)
    say(f"cross-validating in {FOLDS} folds")
    unseen = _cross_validate(fitted, start, fit)
    fitted_to = f"fitted to {len(fitted)} runs of {source}, see software"
    hardware = _with_deviation(fit.hardware(start, fitted_to), unseen)
    rows = tuple(replace(each.row, predicted=_interval(each, hardware)) for each in unseen)
    text = _described_fit(source, fitted, held_out, seed, Comparison(rows, {}))
    assert hardware.software is not None
    hardware = hardware.model_copy(update={"software": hardware.software.model_copy(update={"source": text})})
    return FittedLog(
        hardware, {number.name: value for number, value in zip(FITTED, fit.values, strict=True)}, Comparison(rows, {}),
        compare([run for run, _ in held_out], hardware) if held_out else None, attention is None, refused,
    )  # fmt: skip


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


@dataclass(frozen=True)
class _Unseen:
    """A run predicted by a fit that had not seen it: as it is, and as if no other run had had its block."""

    row: ComparedRun
    plain_error: float
    logged: bool


def _cross_validate(runs: Sequence[Prepared], start: Hardware, near: Fit) -> list[_Unseen]:
    """Predicts each run with what was fitted without its fold."""
    rows: list[_Unseen] = []
    for fold in range(FOLDS):
        unseen = runs[fold::FOLDS]
        fit = fit_runs([pair for place, pair in enumerate(runs) if place % FOLDS != fold], start, near)
        hardware = fit.hardware(start, "a fit of the other folds")
        errors = zip(unseen, log_errors(unseen, hardware), log_errors(unseen, fit.without_blocks(start)), strict=True)
        for (run, footprint), error, plain_error in errors:
            predicted = Estimate.around(run.step_seconds * exp(error), 0.0)
            row = ComparedRun(run, predicted, nodes_of(run, hardware))
            rows.append(_Unseen(row, plain_error, block_of(footprint) in fit.factors))
    return rows


def _with_deviation(hardware: Hardware, unseen: Sequence[_Unseen]) -> Hardware:
    """The system with uncertainties that cover nine of ten runs a fit had not seen."""
    known = [each for each in unseen if each.logged] or unseen
    together = _deviation([log(1 + each.row.error) for each in known])
    within_node, between_nodes = (_deviation_of_kind(known, unseen, within, together) for within in (True, False))
    assert hardware.software is not None
    update = {
        "deviation": within_node,
        "several_nodes_deviation": between_nodes,
        "other_blocks_deviation": _deviation([each.plain_error for each in unseen]),
    }
    return hardware.model_copy(update={"software": hardware.software.model_copy(update=update)})


def _deviation_of_kind(known: Sequence[_Unseen], unseen: Sequence[_Unseen], within: bool, together: float) -> float:
    """The deviation of runs within a node, or of others; few of a kind are no surer than all together.

    Of few runs their deviation is not well known either: Student's t has the interval of the next one.
    """
    from scipy.stats import t

    enough = [log(1 + each.row.error) for each in known if (each.row.nodes == 1) == within]
    if len(enough) >= LEAST_FOR_INTERVAL:
        return _deviation(enough)
    alike = [each for each in unseen if (each.row.nodes == 1) == within] or unseen
    next_one = float(t.ppf(NORMAL_90_QUANTILE, len(alike))) / NORMAL_90 * sqrt(1 + 1 / len(alike))
    return max(together, mean(abs(log(1 + each.row.error)) for each in alike) * sqrt(pi / 2) * next_one)


def _deviation(errors: Sequence[float]) -> float:
    sizes = sorted(map(abs, errors))
    place = min(len(sizes), ceil(0.9 * (len(sizes) + 1))) - 1
    return sizes[place] / NORMAL_90


def _interval(unseen: _Unseen, hardware: Hardware) -> Estimate:
    assert hardware.software is not None
    deviation = hardware.software.deviation_of(unseen.row.nodes, logged=unseen.logged)
    return Estimate.around(unseen.row.predicted.value, deviation)


def _described_fit(
    source: str, fitted: Sequence[Prepared], held_out: Sequence[Prepared], seed: int, comparison: Comparison
) -> str:
    errors = ", ".join(f"{summary.mean_error:.1%} {kind}" for kind, summary in comparison.by_nodes.items())
    kept = f", {len(held_out)} kept out (seed {seed})" if held_out else ""
    return f"fitted to {len(fitted)} runs of {source}{kept}; error by cross-validation {errors}"
