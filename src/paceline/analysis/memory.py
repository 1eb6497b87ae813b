"""Records of one configuration ─► what each process held in memory beyond its framework, and what for."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from paceline.analysis.statistics import median_or_none
from paceline.contract.context import spec_facts
from paceline.costs.footprint import RankFootprint
from paceline.errors import UserError
from paceline.record import Rank, Record
from paceline.spec import RunSpec
from paceline.strategies import strategies


@dataclass(frozen=True, slots=True)
class RankMemory:
    """The memory of one process: bytes above its baseline, medians over repeats; None where it is not known."""

    rank: int
    role: str
    # With the framework imported and nothing else done.
    baseline_bytes: float | None = None
    steady_bytes: float | None = None
    peak_bytes: float | None = None
    final_bytes: float | None = None
    # By the allocator of its GPU.
    device_peak_bytes: float | None = None
    # The lowest and the highest `most` of the repeats.
    most_range: tuple[float, float] = (0.0, 0.0)
    # Measured: the tensors that it held in the end.
    parameter_bytes: float | None = None
    optimizer_bytes: float | None = None
    # Computed from what the strategy holds by design.
    gradient_bytes: float | None = None
    activation_bytes: float | None = None

    @property
    def most(self) -> float:
        """The peak that processes are compared by: on the device where there is one, else on the host."""
        return self.device_peak_bytes or self.peak_bytes or 0.0


def rank_memory(records: Sequence[Record]) -> tuple[RankMemory, ...]:
    """Summarises the good runs of one configuration, process by process."""
    if not any(rank.memory is not None or "held_bytes" in rank.details for record in records for rank in record.ranks):
        return ()
    byproduct = computed_bytes(records[0].spec)
    same = [record.ranks for record in records if len(record.ranks) == len(records[0].ranks)]
    return tuple(
        _process_memory(list(views), byproduct[place] if place < len(byproduct) else None)
        for place, views in enumerate(zip(*same, strict=True))
    )


def _process_memory(views: list[Rank], footprint: tuple[float, float] | None) -> RankMemory:
    memory = [view.memory for view in views if view.memory is not None]
    gradients, activations = footprint or (None, None)
    return RankMemory(
        rank=views[0].rank,
        role=views[0].role,
        baseline_bytes=median_or_none([sample.baseline_bytes for sample in memory]),
        steady_bytes=median_or_none([max(0, sample.steady_bytes - sample.baseline_bytes) for sample in memory]),
        peak_bytes=median_or_none([max(0, sample.peak_bytes - sample.baseline_bytes) for sample in memory]),
        final_bytes=median_or_none([max(0, sample.final_bytes - sample.baseline_bytes) for sample in memory]),
        device_peak_bytes=_median_detail(views, "device_peak_bytes"),
        most_range=(min(map(_most, views)), max(map(_most, views))),
        parameter_bytes=_median_detail(views, "held_bytes", "parameters"),
        optimizer_bytes=_median_detail(views, "held_bytes", "optimizer"),
        gradient_bytes=gradients,
        activation_bytes=activations,
    )


def _most(view: Rank) -> float:
    device_peak = view.details.get("device_peak_bytes")
    if device_peak:
        return float(device_peak)
    return float(max(0, view.memory.peak_bytes - view.memory.baseline_bytes)) if view.memory else 0.0


def _median_detail(views: list[Rank], *names: str) -> float | None:
    values: list[Any] = [view.details for view in views]
    for name in names:
        values = [value[name] for value in values if isinstance(value, dict) and value.get(name) is not None]
    return median_or_none(values)


def computed_bytes(spec: RunSpec) -> list[tuple[float, float]]:
    """Gradient and activation bytes of each process by the strategy's footprint, summed over the workers it drives.

    Empty for a user's model, of which only the number of parameters is known.
    """
    chosen = strategies().get(spec.strategy)
    if chosen is None or spec.model is not None or spec.dataset is None:
        return []
    groups: tuple[RankFootprint, ...] = ()
    with suppress(UserError):
        groups = chosen.footprint(spec, spec_facts(spec)).groups
    ranks = [(group.gradient_bytes, group.activation_bytes) for group in groups for _ in range(group.ranks)]
    workers_per_process = [role.workers_each for role in chosen.needs.roles(spec) for _ in range(role.processes)]
    if sum(workers_per_process) != len(ranks):
        return []
    edges = [sum(workers_per_process[:place]) for place in range(len(workers_per_process) + 1)]
    shares = [ranks[begin:end] for begin, end in pairwise(edges)]
    return [(sum(rank[0] for rank in share), sum(rank[1] for rank in share)) for share in shares]


def heaviest_columns(ranks: Sequence[RankMemory]) -> dict[str, float | None]:
    """The memory of the process that held most, as columns of a table."""
    process = max(ranks, key=lambda rank: rank.most, default=RankMemory(0, ""))
    return {
        "memory_baseline_bytes": process.baseline_bytes,
        "memory_steady_bytes": process.steady_bytes,
        "memory_peak_bytes": process.peak_bytes,
        "device_peak_bytes": process.device_peak_bytes,
        "parameter_bytes": process.parameter_bytes,
        "optimizer_bytes": process.optimizer_bytes,
        "gradient_bytes_computed": process.gradient_bytes,
        "activation_bytes_computed": process.activation_bytes,
    }
