"""Records of one configuration ─► what each process held beyond its framework, and of what it consisted."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from paceline.analysis.statistics import middle
from paceline.contract.context import spec_facts
from paceline.costs.footprint import RankFootprint
from paceline.errors import UserError
from paceline.record import Rank, Record
from paceline.spec import RunSpec
from paceline.strategies import strategies


@dataclass(frozen=True)
class RankMemory:
    """One process: bytes above its baseline, medians over repeats; None where it was not or cannot be known."""

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
        """By which processes are compared: on the device where there is one."""
        return self.device_peak_bytes or self.peak_bytes or 0.0


def rank_memory(records: Sequence[Record]) -> tuple[RankMemory, ...]:
    """From the good runs of one configuration, process by process."""
    if not any(rank.memory is not None or "held_bytes" in rank.details for record in records for rank in record.ranks):
        return ()
    byproduct = computed(records[0].spec)
    same = [record.ranks for record in records if len(record.ranks) == len(records[0].ranks)]
    return tuple(
        _of_process(list(views), byproduct[place] if place < len(byproduct) else None)
        for place, views in enumerate(zip(*same, strict=True))
    )


def _of_process(views: list[Rank], footprint: tuple[float, float] | None) -> RankMemory:
    memory = [view.memory for view in views if view.memory is not None]
    gradients, activations = footprint or (None, None)
    return RankMemory(
        rank=views[0].rank,
        role=views[0].role,
        baseline_bytes=middle([one.baseline_bytes for one in memory]),
        steady_bytes=middle([max(0, one.steady_bytes - one.baseline_bytes) for one in memory]),
        peak_bytes=middle([max(0, one.peak_bytes - one.baseline_bytes) for one in memory]),
        final_bytes=middle([max(0, one.final_bytes - one.baseline_bytes) for one in memory]),
        device_peak_bytes=_told(views, "device_peak_bytes"),
        most_range=(min(map(_most, views)), max(map(_most, views))),
        parameter_bytes=_told(views, "held_bytes", "parameters"),
        optimizer_bytes=_told(views, "held_bytes", "optimizer"),
        gradient_bytes=gradients,
        activation_bytes=activations,
    )


def _most(view: Rank) -> float:
    told = view.details.get("device_peak_bytes")
    if told:
        return float(told)
    return float(max(0, view.memory.peak_bytes - view.memory.baseline_bytes)) if view.memory else 0.0


def _told(views: list[Rank], *names: str) -> float | None:
    found: list[Any] = [view.details for view in views]
    for name in names:
        found = [one[name] for one in found if isinstance(one, dict) and one.get(name) is not None]
    return middle(found)


def computed(spec: RunSpec) -> list[tuple[float, float]]:
    """Gradient and activation bytes of each process by the strategy's footprint: the sum over workers that it drives.

    Nothing for a user's own model, of which only the number of parameters is known.
    """
    chosen = strategies().get(spec.strategy)
    if chosen is None or spec.model is not None or spec.dataset is None:
        return []
    groups: tuple[RankFootprint, ...] = ()
    with suppress(UserError):
        groups = chosen.footprint(spec, spec_facts(spec)).groups
    ranks = [(group.gradient_bytes, group.activation_bytes) for group in groups for _ in range(group.ranks)]
    each = [role.workers_each for role in chosen.needs.roles(spec) for _ in range(role.processes)]
    if sum(each) != len(ranks):
        return []
    edges = [sum(each[:place]) for place in range(len(each) + 1)]
    shares = [ranks[begin:end] for begin, end in pairwise(edges)]
    return [(sum(one[0] for one in share), sum(one[1] for one in share)) for share in shares]


def heaviest(ranks: Sequence[RankMemory]) -> dict[str, float | None]:
    """The process that held most, as columns of a table; their names say what is above the framework's own."""
    one = max(ranks, key=lambda rank: rank.most, default=RankMemory(0, ""))
    return {
        "memory_baseline_bytes": one.baseline_bytes,
        "memory_steady_bytes": one.steady_bytes,
        "memory_peak_bytes": one.peak_bytes,
        "device_peak_bytes": one.device_peak_bytes,
        "parameter_bytes": one.parameter_bytes,
        "optimizer_bytes": one.optimizer_bytes,
        "gradient_bytes_computed": one.gradient_bytes,
        "activation_bytes_computed": one.activation_bytes,
    }
