"""What every layout of so many devices holds and sends, and how long its pipeline idles: counted, nothing is timed."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from paceline.costs.footprint import BACKWARD_OVER_FORWARD, Footprint, RankFootprint
from paceline.costs.messages import Content, Message
from paceline.layout import DIMENSIONS, Layout, all_layouts
from paceline.predict.pipelines import line_of_workers, pipeline_seconds
from paceline.predict.question import Question
from paceline.spec import BASELINE, RunSpec
from paceline.strategies import Strategy, strategies, strategy

Order = Literal["held", "sent"]
ORDERS: tuple[Order, ...] = get_args(Order)
CONTENTS: tuple[Content, ...] = get_args(Content)


@dataclass(frozen=True)
class LayoutCost:
    """One layout: the rank that holds most, the rank that sends most, and the idle share of its pipeline."""

    spec: RunSpec
    heaviest: RankFootprint
    busiest: RankFootprint
    bubble: float
    # Peak of a worker with what its framework takes beside, and whether it has that much; None without a system.
    memory_bytes: float | None = None
    fits: bool | None = None

    @property
    def layout(self) -> Layout:
        """The layout that the numbers are of."""
        assert self.spec.layout is not None
        return self.spec.layout

    @property
    def sent_by_content(self) -> dict[str, float]:
        """Bytes that the busiest rank sends in a step, by what they are."""
        return _sums((message.carries, message) for message in self.busiest.messages)

    @property
    def sent_by_dimension(self) -> dict[str, float]:
        """Bytes that the busiest rank sends, by the dimension of the mesh along which they go."""
        return _sums((dimension_of(message, self.layout), message) for message in self.busiest.messages)


def dimension_of(message: Message, layout: Layout) -> str:
    """The layout dimension that a message belongs to, from the number of its ranks and the distance between them."""
    near = [name for name in DIMENSIONS if getattr(layout, name) > 1 and layout.apart(name) == message.apart]
    # Experts are dealt among neighbours, as layers are split.
    if message.kind == "all-to-all" and "expert" in near:
        return "expert"
    exactly = [name for name in near if getattr(layout, name) == message.ranks]
    return next(iter((*exactly, *near)), "others")


def _sums(messages: Iterable[tuple[str, Message]]) -> dict[str, float]:
    sums: dict[str, float] = defaultdict(float)
    for name, message in messages:
        sums[name] += message.sent_bytes * message.count
    return dict(sums)


def strategies_with_layouts() -> list[Strategy]:
    """Strategies that take a layout; that of the baseline's framework comes first."""
    taking = [chosen for chosen in strategies().values() if "layout" in chosen.needs.heeds]
    return sorted(taking, key=lambda chosen: chosen.framework != strategy(BASELINE).framework)


def layout_costs(
    question: Question, name: str, devices: int, order: Order, knows_memory: bool
) -> tuple[list[LayoutCost], dict[str, str]]:
    """The costs of all layouts that fit the model and the batch, least first, and the reasons why others do not."""
    costs, refused = [], {}
    for layout in all_layouts(devices):
        (spec,) = question.specs(name, {"layout": layout.text}, batches=question.batches[:1])
        reason = question.why_not(spec)
        if reason is not None:
            refused[layout.text] = reason
        else:
            costs.append(_cost(question, spec, knows_memory))
    return sorted(costs, key=lambda cost: _rank(cost, order)), refused


def _rank(cost: LayoutCost, order: Order) -> tuple[bool, float]:
    """The sort key of a layout: those that do not fit come last."""
    amount = cost.heaviest.held_bytes if order == "held" else cost.busiest.sent_bytes
    return cost.fits is False, amount


def _cost(question: Question, spec: RunSpec, knows_memory: bool) -> LayoutCost:
    footprint = strategy(spec.strategy).footprint(spec, question.facts)
    workers = [group for group in footprint.groups if group.role == "worker"]
    memory = fits = None
    if knows_memory:
        needed, limit = question.predictor.memory(spec, footprint)
        memory, fits = needed.value, needed.value <= limit
    busiest = max(workers, key=lambda group: group.sent_bytes)
    return LayoutCost(spec, footprint.heaviest, busiest, idle_share(footprint), memory, fits)


def idle_share(footprint: Footprint) -> float:
    """The share of a step in which a rank of the pipeline waits for others, on average, by counted operations alone."""
    stages = footprint.stages
    if stages is None or stages.workers == 1:
        return 0.0
    line = line_of_workers(footprint.groups, stages)
    passes = [(group.flops, BACKWARD_OVER_FORWARD * group.flops) for group in line]
    total = pipeline_seconds(stages, passes, [0.0] * len(line))
    busy = sum(map(sum, passes)) * stages.microbatches
    return 1 - busy / (total * len(line)) if total else 0.0
