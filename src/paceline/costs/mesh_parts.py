"""A rank's part of a model in a composed layout: its stages, its part of each layer, its experts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from paceline.costs.cuts import cut_by_blocks, cut_by_flops
from paceline.costs.footprint import ModelFacts
from paceline.costs.layers import LayerFacts
from paceline.costs.layouts import MeshPlan, is_causal_transformer, transformer_role
from paceline.costs.splits import worker_model
from paceline.costs.torch import Array, arrays_of, shard_runs

# Arrays of a layer that are whole on every rank: each has its part of their gradient.
WHOLE_ARRAYS = ("norm1_scale", "norm1_shift", "norm2_scale", "norm2_shift", "scale", "shift")
_COLUMNS = (
    "qkv_kernel", "qkv_bias", "q_kernel", "k_kernel", "v_kernel", "gate_kernel", "up_kernel", "up_bias", "kernel",
    "bias",
)  # fmt: skip
_ROWS = ("out_kernel", "down_kernel", "tokens", "positions")
# How the names of arrays begin that are dealt over ranks.
EXPERTS = "experts_"


@dataclass(frozen=True)
class Place:
    """One place in the pipeline: its stages of the whole model, and a rank's part of them."""

    number: int
    stages: tuple[int, ...]
    whole: ModelFacts
    part: ModelFacts

    def alike(self, other: "Place", stages: int) -> bool:
        """Whether neither has an end of the pipeline and their layers differ in nothing but names."""
        ends = {0, stages - 1} & {*self.stages, *other.stages}
        return not ends and len(self.stages) == len(other.stages) and self._nameless == other._nameless

    @cached_property
    def _nameless(self) -> tuple[tuple[LayerFacts, int], ...]:
        return tuple((replace(self.part.layers[start], name=""), count) for start, count in self.runs)

    @cached_property
    def distinct(self) -> "Place":
        """The same with the first of each run of like layers alone."""
        whole, part = (
            ModelFacts(tuple(model.layers[start] for start, _ in self.runs), model.input_elements)
            for model in (self.whole, self.part)
        )
        return replace(self, whole=whole, part=part)

    @cached_property
    def like(self) -> dict[str | None, int]:
        """How many layers each of those stands for, by its name."""
        return {self.whole.layers[start].name: count for start, count in self.runs}

    @cached_property
    def runs(self) -> tuple[tuple[int, int], ...]:
        """Neighbouring layers that are alike, whole and in part: the place of the first of them, and how many."""
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
    """All places in the pipeline, and the layers of each stage; of like divisions of a model the same ones."""
    key = ("places", *plan.division)
    if key not in model.derived:
        cut = cut_by_blocks if plan.balance == "blocks" else cut_by_flops
        stages = cut(model.layers, plan.stages) if plan.layout.pipeline > 1 else (model.layers,)
        places = tuple(place_of(plan, number, stages, model.input_elements) for number in range(plan.layout.pipeline))
        model.derived[key] = places, stages
    found: tuple[tuple[Place, ...], Sequence[Sequence[LayerFacts]]] = model.derived[key]
    return found


def place_of(plan: MeshPlan, number: int, stages: Sequence[Sequence[LayerFacts]], input_elements: int) -> Place:
    """A place in the pipeline, with a rank's part of what is there."""
    held = plan.held_stages(number)
    layers = tuple(layer for stage in held for layer in stages[stage])
    # Only the first stage reads the samples themselves; what others receive is in their buffers.
    read = input_elements if held[0] == 0 else 0
    if plan.layout.pipeline > 1:
        layers = tuple(_with_copy(layer) for layer in layers)
    whole = ModelFacts(layers, read)
    if plan.layout.tensor > 1 and not is_causal_transformer(whole) and plan.layout.pipeline == 1:
        return Place(number, held, whole, worker_model(plan.splits(whole), plan.layout.tensor))
    part = tuple(_with_all_keys(_split(_dealt(layer, plan), plan.layout.tensor), plan) for layer in layers)
    return Place(number, held, whole, ModelFacts(part, read))


def _with_copy(layer: LayerFacts) -> LayerFacts:
    """A tied head that is on another stage than its table has a copy of it."""
    if layer.tied is None:
        return layer
    arrays = (*layer.arrays, ("tokens", layer.tied))
    return replace(layer, arrays=arrays, parameters=layer.parameters + math.prod(layer.tied), tensors=layer.tensors + 1)


def _dealt(layer: LayerFacts, plan: MeshPlan) -> LayerFacts:
    """The layer with a rank's share of its experts, who are given as many vectors as all of them would on one rank."""
    ways = plan.layout.expert
    if ways == 1 or not layer.experts:
        return layer
    arrays = tuple(
        (name, (shape[0] // ways, *shape[1:]) if name.startswith(EXPERTS) else shape) for name, shape in layer.arrays
    )
    return replace(layer, arrays=arrays, parameters=sum(math.prod(shape) for _, shape in arrays))


def _with_all_keys(layer: LayerFacts, plan: MeshPlan) -> LayerFacts:
    """Keys and values of all stretches are gathered beside a rank's own; counts are of a whole sequence."""
    if plan.layout.context == 1 or not layer.heads or plan.attention == "ring":
        return layer
    gathered = keys_and_values(layer) * plan.layout.context // plan.layout.tensor
    return replace(layer, kept_elements=layer.kept + gathered, product_elements=layer.product_elements + gathered)


def keys_and_values(layer: LayerFacts) -> int:
    """Numbers of both in a block, for a whole sequence."""
    assert layer.heads is not None
    return 2 * layer.output_elements * (layer.kv_heads or layer.heads) // layer.heads


@lru_cache(maxsize=1024)
def _split(layer: LayerFacts, ways: int) -> LayerFacts:
    """A rank's part of a layer: sizes that do not divide are those of the first rank, which has most."""
    if ways == 1:
        return layer
    arrays = tuple((name, _shape(name, shape, ways)) for name, shape in layer.arrays)
    role = transformer_role(layer)
    kept = math.ceil(layer.kept / ways)
    if role == "block":
        # What both norms give is kept as it was gathered, by the products that take it.
        kept += 2 * layer.output_elements - 2 * layer.output_elements // ways
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


def head_shape(layer: LayerFacts) -> tuple[int, int]:
    """Of the head's product: numbers that go in for each position, and that come out."""
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
    """Parameters of a layer that FSDP gathers together, from so many ranks."""

    layer: str
    arrays: list[Array]
    holders: int

    @cached_property
    def padded(self) -> int:
        """Numbers that travel."""
        return sum(array.padded(self.holders) for array in self.arrays)


def units_of(plan: MeshPlan, model: ModelFacts) -> dict[str, Unit]:
    """By name: each layer, and its experts apart where they are dealt."""
    key = ("units", plan.layout.holders, plan.layout.expert)
    if key not in model.derived:
        model.derived[key] = _units(plan, model)
    found: dict[str, Unit] = model.derived[key]
    return found


def _units(plan: MeshPlan, model: ModelFacts) -> dict[str, Unit]:
    units: dict[str, Unit] = {}
    for layer in model.layers:
        dealt = tuple(array for array in layer.arrays if array[0].startswith(EXPERTS) and plan.layout.expert > 1)
        kept = tuple(array for array in layer.arrays if array not in dealt)
        if kept or (layer.parameters and not dealt):
            units[layer.name] = Unit(layer.name, arrays_of([replace(layer, arrays=kept)]), plan.layout.holders)
        if dealt:
            rest = plan.layout.holders // plan.layout.expert
            units[f"{layer.name} experts"] = Unit(layer.name, arrays_of([replace(layer, arrays=dealt)]), rest)
    return units


def held_by_ranks(plan: MeshPlan, place: Place) -> list[tuple[int, int]]:
    """Ranks in order that hold as much as each other: how many, and numbers in the shard of each."""
    key = ("held", plan.layout.holders, plan.layout.expert)
    if key not in place.part.derived:
        place.part.derived[key] = _held(plan, place)
    found: list[tuple[int, int]] = place.part.derived[key]
    return found


def _held(plan: MeshPlan, place: Place) -> list[tuple[int, int]]:
    layout, arrays = plan.layout, _by_holders(plan, place.part)
    runs = shard_runs(arrays[layout.holders], layout.holders)
    if layout.expert == 1:
        return runs
    alone = [held for count, held in runs for _ in range(count)]
    rest = layout.holders // layout.expert
    dealt = [held for count, held in shard_runs(arrays.get(rest, []), rest) for _ in range(count * layout.expert)]
    return [(1, own + experts) for own, experts in zip(alone, dealt or [0] * len(alone), strict=True)]


def _by_holders(plan: MeshPlan, model: ModelFacts) -> dict[int, list[Array]]:
    """Arrays by the number of ranks that they are divided over: experts have fewer of them."""
    holders: dict[int, list[Array]] = {plan.layout.holders: []}
    for unit in units_of(plan, model).values():
        holders.setdefault(unit.holders, []).extend(unit.arrays)
    return holders


def gathered_numbers(plan: MeshPlan, model: ModelFacts) -> tuple[int, int]:
    """Of all parameters as they travel, and of the layer that has most."""
    key = ("gathered", plan.layout.holders, plan.layout.expert)
    if key not in model.derived:
        padded = [unit.padded for unit in units_of(plan, model).values()]
        model.derived[key] = sum(padded), max(padded, default=0)
    found: tuple[int, int] = model.derived[key]
    return found
