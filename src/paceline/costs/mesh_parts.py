"""A rank's part of a model in a composed layout: its stages, its part of each layer, its experts."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import groupby

from paceline.costs.cuts import cut_by_blocks, cut_by_flops
from paceline.costs.footprint import FLOAT_BYTES, ModelFacts
from paceline.costs.layers import LayerFacts
from paceline.costs.layouts import MeshPlan, is_causal_transformer, transformer_role
from paceline.costs.messages import Message, all_reduce, during
from paceline.costs.splits import worker_model
from paceline.costs.torch import Array, arrays_of, shard_runs
from paceline.layout import Layout

# Arrays of a layer that are whole on every rank.
_WHOLE = ("norm1_scale", "norm1_shift", "norm2_scale", "norm2_shift", "scale", "shift", "router_kernel")
_COLUMNS = (
    "qkv_kernel", "qkv_bias", "q_kernel", "k_kernel", "v_kernel", "gate_kernel", "up_kernel", "up_bias", "kernel",
    "bias",
)  # fmt: skip
_POSITIONS = "positions"
_ROWS = ("out_kernel", "down_kernel", "tokens", _POSITIONS)
# How the names of arrays begin that are dealt over ranks.
EXPERTS = "experts_"
# How the names of their units end.
EXPERT_UNIT = " experts"
# Gradients of so many numbers are summed at once between copies: in single precision, what DDP puts into a bucket.
NUMBERS_AT_ONCE = 25 * 2**20 // FLOAT_BYTES


@dataclass(frozen=True)
class Place:
    """One position in the pipeline: its stages of the whole model, and the part of them that a rank has."""

    number: int
    stages: tuple[int, ...]
    whole: ModelFacts
    part: ModelFacts

    def alike(self, other: "Place", stages: int) -> bool:
        """Whether two positions are both inside the pipeline and have layers that differ only in their names."""
        ends = {0, stages - 1} & {*self.stages, *other.stages}
        return not ends and len(self.stages) == len(other.stages) and self._nameless == other._nameless

    @cached_property
    def _nameless(self) -> tuple[tuple[LayerFacts, int], ...]:
        return tuple((replace(self.part.layers[start], name=""), count) for start, count in self.runs)

    @cached_property
    def distinct(self) -> "Place":
        """The same position with only the first of each run of equal layers."""
        whole, part = (
            ModelFacts(tuple(model.layers[start] for start, _ in self.runs), model.input_elements)
            for model in (self.whole, self.part)
        )
        return replace(self, whole=whole, part=part)

    @cached_property
    def like(self) -> dict[str | None, int]:
        """How many layers each layer of `distinct` stands for, by name."""
        return {self.whole.layers[start].name: count for start, count in self.runs}

    @cached_property
    def runs(self) -> tuple[tuple[int, int], ...]:
        """Runs of neighbouring layers that are equal, also in a rank's part: the index of the first, and the length."""
        runs, pairs = list[tuple[int, int]](), list(zip(self.whole.layers, self.part.layers, strict=True))
        for place, pair in enumerate(pairs):
            start = runs[-1][0] if runs else 0
            if place and all(map(_alike, pairs[start], pair)):
                runs[-1] = start, runs[-1][1] + 1
            else:
                runs.append((place, 1))
        return tuple(runs)


def _alike(layer: LayerFacts, other: LayerFacts) -> bool:
    """Whether two layers differ in nothing but their names."""
    return replace(layer, name=other.name) == other


def places_of(plan: MeshPlan, model: ModelFacts) -> tuple[tuple[Place, ...], Sequence[Sequence[LayerFacts]]]:
    """All positions in the pipeline and the layers of each stage; cached for equal divisions of the model."""

    def divided() -> tuple[tuple[Place, ...], Sequence[Sequence[LayerFacts]]]:
        cut = cut_by_blocks if plan.balance == "blocks" else cut_by_flops
        stages = cut(model.layers, plan.stages) if plan.layout.pipeline > 1 else (model.layers,)
        numbers = range(plan.layout.pipeline)
        return tuple(place_of(plan, number, stages, model.input_elements) for number in numbers), stages

    return model.derive(("places", *plan.division), divided)


def place_of(plan: MeshPlan, number: int, stages: Sequence[Sequence[LayerFacts]], input_elements: int) -> Place:
    """A position in the pipeline, with the part of its layers that a rank has."""
    stage_numbers = plan.held_stages(number)
    layers = tuple(layer for stage in stage_numbers for layer in stages[stage])
    # Only the first stage reads the samples themselves; what others receive is in their buffers.
    read = input_elements if stage_numbers[0] == 0 else 0
    if plan.layout.pipeline > 1:
        layers = tuple(_with_copy(layer) for layer in layers)
    whole = ModelFacts(layers, read)
    if plan.layout.tensor > 1 and not is_causal_transformer(whole) and plan.layout.pipeline == 1:
        return Place(number, stage_numbers, whole, worker_model(plan.splits(whole), plan.layout.tensor))
    keeps_positions = plan.layout.context > 1
    part = tuple(
        _with_all_keys(_split(_dealt(layer, plan), plan.layout.tensor, keeps_positions), plan) for layer in layers
    )
    return Place(number, stage_numbers, whole, ModelFacts(part, read))


def _with_copy(layer: LayerFacts) -> LayerFacts:
    """A tied head with its own copy of the embedding, for a head on another stage than the embedding."""
    if layer.tied is None:
        return layer
    arrays = (*layer.arrays, ("tokens", layer.tied))
    return replace(layer, arrays=arrays, parameters=layer.parameters + math.prod(layer.tied), tensors=layer.tensors + 1)


def _dealt(layer: LayerFacts, plan: MeshPlan) -> LayerFacts:
    """The layer with a rank's share of its experts; together they still process as many tokens as on one rank."""
    ways = plan.layout.expert
    if ways == 1 or not layer.experts:
        return layer
    arrays = tuple(
        (name, (shape[0] // ways, *shape[1:]) if name.startswith(EXPERTS) else shape) for name, shape in layer.arrays
    )
    return replace(layer, arrays=arrays, parameters=sum(math.prod(shape) for _, shape in arrays))


def _with_all_keys(layer: LayerFacts, plan: MeshPlan) -> LayerFacts:
    """The layer with the gathered keys and values of the whole sequence beside a rank's own."""
    if plan.layout.context == 1 or not layer.heads or plan.attention == "ring":
        return layer
    gathered = keys_and_values(layer) * plan.layout.context // plan.layout.tensor
    return replace(layer, kept_elements=layer.kept + gathered, product_elements=layer.product_elements + gathered)


def keys_and_values(layer: LayerFacts) -> int:
    """How many numbers the keys and values of a block have for a whole sequence."""
    assert layer.heads is not None
    return 2 * layer.output_elements * (layer.kv_heads or layer.heads) // layer.heads


@lru_cache(maxsize=1024)
def _split(layer: LayerFacts, ways: int, keeps_positions: bool) -> LayerFacts:
    """A rank's part of a layer: sizes that do not divide are those of the first rank, which has most.

    Where a rank has some positions of a stretch of the sequence, it keeps the vectors of all positions.
    """
    if ways == 1:
        return layer
    kept_whole = _POSITIONS if keeps_positions else None
    arrays = tuple((name, shape if name == kept_whole else _shape(name, shape, ways)) for name, shape in layer.arrays)
    role = transformer_role(layer)
    kept = math.ceil(layer.kept / ways)
    if role == "block":
        # What norms give is kept as it was gathered, by the split products that take it.
        kept += split_halves(layer) * (layer.output_elements - layer.output_elements // ways)
    elif role == "head":
        width, vocabulary = head_shape(layer)
        kept += layer.output_elements // vocabulary * width
    return replace(
        layer,
        arrays=arrays,
        parameters=sum(math.prod(shape) for _, shape in arrays),
        forward_flops=layer.forward_flops // ways,
        kept_elements=kept,
        single_elements=math.ceil(layer.single_elements / ways),
        summed_elements=math.ceil(layer.summed_elements / ways),
    )


def stays_whole(array: str, layout: Layout) -> bool:
    """Whether all ranks of `tensor` have the whole of an array, and each a part of its gradient."""
    return array in _WHOLE or (array == _POSITIONS and layout.context > 1)


def split_halves(layer: LayerFacts) -> int:
    """Halves of a block whose products are split over ranks; experts take the vectors of single positions."""
    return 1 if layer.experts else 2


def head_shape(layer: LayerFacts) -> tuple[int, int]:
    """Inputs and outputs of the head's product for each position."""
    if layer.tied is not None:
        return layer.tied[1], layer.tied[0]
    width, vocabulary = dict(layer.arrays)["kernel"]
    return width, vocabulary


def _shape(name: str, shape: tuple[int, ...], ways: int) -> tuple[int, ...]:
    if name in _COLUMNS:
        return (*shape[:-1], math.ceil(shape[-1] / ways))
    return (math.ceil(shape[0] / ways), *shape[1:]) if name in _ROWS else shape


@dataclass(frozen=True)
class Unit:
    """Parameters of a layer that FSDP gathers together, from so many ranks, whose numbers are so far `apart`."""

    layer: str
    arrays: list[Array]
    holders: int
    apart: int = 1
    # Whether they are experts that have ranks of their own.
    dealt: bool = False

    @cached_property
    def padded(self) -> int:
        """How many numbers are sent, padding included."""
        return sum(array.padded(self.holders) for array in self.arrays)


def units_of(plan: MeshPlan, model: ModelFacts) -> dict[str, Unit]:
    """FSDP units by name: each layer, and its experts apart where they are on other ranks than the rest."""
    return model.derive(("units", plan.layout.holders, plan.layout.expert), lambda: _units(plan, model))


def _units(plan: MeshPlan, model: ModelFacts) -> dict[str, Unit]:
    units: dict[str, Unit] = {}
    layout = plan.layout
    for layer in model.layers:
        dealt = tuple(array for array in layer.arrays if array[0].startswith(EXPERTS) and has_experts_apart(layout))
        other_arrays = tuple(array for array in layer.arrays if array not in dealt)
        if other_arrays or (layer.parameters and not dealt):
            arrays = arrays_of([replace(layer, arrays=other_arrays)])
            units[layer.name] = Unit(layer.name, arrays, layout.holders, layout.apart("context"))
        if dealt:
            arrays = arrays_of([replace(layer, arrays=dealt)])
            units[layer.name + EXPERT_UNIT] = Unit(layer.name, arrays, layout.expert_holders, layout.expert, dealt=True)
    return units


def held_by_ranks(plan: MeshPlan, place: Place) -> list[tuple[int, int]]:
    """Runs of consecutive ranks that hold equal shards: the length of the run, and the size of the shard."""
    key = ("held", plan.layout.holders, plan.layout.expert)
    return place.part.derive(key, lambda: _shard_runs(plan, place))


def _shard_runs(plan: MeshPlan, place: Place) -> list[tuple[int, int]]:
    layout, units = plan.layout, units_of(plan, place.part).values()
    others, experts = (
        [array for unit in units if unit.dealt is dealt for array in unit.arrays] for dealt in (False, True)
    )
    runs = [(count * layout.tensor, held) for count, held in shard_runs(others, layout.holders)]
    if not experts:
        return runs
    both = runs, [(count * layout.expert, held) for count, held in shard_runs(experts, layout.expert_holders)]
    by_rank = zip(*([held for count, held in each for _ in range(count)] for each in both), strict=True)
    return [(len(list(ranks)), held) for held, ranks in groupby(map(sum, by_rank))]


def has_experts_apart(layout: Layout) -> bool:
    """Whether a mixture's experts are divided over other ranks than the rest of the model."""
    return layout.expert > 1 or layout.tensor > 1


def whole_at_once(plan: MeshPlan, units: Collection[Unit]) -> int:
    """Numbers of the layers that are whole at a time, gathered or with their gradients.

    A pipeline's stages, a model between the passes of a step that reduces gradients at its end, and one that is not
    divided or small stay so; experts that have ranks of their own come and go where the rest stays.
    """
    several, layout = plan.adds_up_whole, plan.layout
    numbers = sum(unit.padded for unit in units if not unit.dealt)
    alone = layout.holders * layout.replicate == 1 or copied_at_once(layout, numbers)
    stay = [unit.padded for unit in units if several or (alone and not unit.dealt)]
    come_and_go = [unit.padded for unit in units if not several and (unit.dealt or not alone)]
    return sum(stay) + max(come_and_go, default=0)


def copied_at_once(layout: Layout, numbers: int) -> bool:
    """Whether a model of so many numbers, experts that have ranks of their own aside, is copied as a whole."""
    return layout.holders == layout.pipeline == 1 < layout.replicate and numbers <= NUMBERS_AT_ONCE


def numbers_beside_experts(layout: Layout, model: ModelFacts) -> int:
    """Numbers of all parameters; those of experts only where they have no ranks of their own."""
    apart = model.layers if has_experts_apart(layout) else ()
    dealt = (math.prod(shape) for layer in apart for name, shape in layer.arrays if name.startswith(EXPERTS))
    return model.parameters - sum(dealt)


def summed_at_once(messages: Sequence[Message], plan: MeshPlan) -> list[Message]:
    """Sums of gradients between copies, layer by layer, as one sum behind the last of them."""
    layers, experts = (
        [message for message in messages if message.name.endswith(EXPERT_UNIT) is dealt] for dealt in (False, True)
    )
    often = {"count": plan.reductions, "passes": plan.reductions}
    payload = sum(message.payload_bytes * message.count for message in layers) / plan.reductions
    summed = all_reduce("gradient shards of all layers", payload, plan.layout.replicate)
    where = {"hidden": True, "layer": layers[0].layer, "apart": layers[0].apart, **often}
    return [*during(summed, "backward", **where), *experts]
