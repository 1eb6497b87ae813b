"""How single layers are split over workers for tensor parallelism, and what each worker then costs.

Shoeybi et al., "Megatron-LM", 2019: a dense layer by columns, so that its output is split, then the next by rows, so
that its partial results are summed; attention by heads; here also convolutions by output channels. What runs and what a
footprint counts are split by the same function, so that they agree.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from paceline.costs.cuts import BUCKET_BYTES, FactsOf
from paceline.costs.footprint import (
    FLOAT_BYTES,
    Footprint,
    LayerFacts,
    Message,
    ModelFacts,
    Phase,
    RankFootprint,
    all_gather,
    all_reduce,
    during,
    optimizer_bytes,
    reduce_scatter,
    training_flops,
)
from paceline.spec import RunSpec, Scalar

# How a layer's own arrays are divided.
Part = Literal["whole", "columns", "rows", "channels", "heads"]
Collective = Callable[[str, float, int], tuple[Message, ...]]
Kind = Literal["shape", "dense", "conv", "attention", "other"]
# In a transformer block, what its columns are; the other kernels are by rows, and norms whole.
_BLOCK_COLUMNS, _BLOCK_ROWS = ("qkv", "up"), ("out", "down")
_SUMS_OF_A_BLOCK = 2
PASSES: tuple[Phase, Phase] = ("forward", "backward")
# Activations of a block's width that are not divided: of two norms, of the sum between, and the block's own.
_WHOLE_OF_A_BLOCK = 4


@dataclass(frozen=True)
class Split:
    """One layer's place in a split model."""

    layer: LayerFacts
    input_elements: int
    part: Part = "whole"
    # Whether its input arrives split over the workers, and its output leaves so.
    takes_split: bool = False
    gives_split: bool = False
    # Whether its output, made in parts, is put together at once.
    gathers_output: bool = False
    # Whether anything before it is trained, so that its input's gradient is wanted.
    sends_back: bool = False

    @property
    def gathers_input(self) -> bool:
        """Whether its input must be put together first."""
        return self.takes_split and self.kind in ("conv", "attention", "other")

    @property
    def kind(self) -> Kind:
        """What its arrays say that it is."""
        return _kind(self.layer)


def split_layers(model: ModelFacts, ways: int, split_convolutions: bool) -> tuple[Split, ...]:
    """Each layer's part, as far as sizes divide; what does not divide stays whole on every worker."""
    found: list[Split] = []
    elements, is_split, trained = model.input_elements, False, False
    for index, layer in enumerate(model.layers):
        following = next((_kind(after) for after in model.layers[index + 1 :] if after.arrays), None)
        part = _part(layer, ways, is_split, following, split_convolutions)
        ends_here = following is None and part in ("columns", "channels")
        gives = is_split if _kind(layer) == "shape" else part in ("columns", "channels") and not ends_here
        found.append(Split(layer, elements, part, is_split, gives, ends_here, trained))
        elements, is_split, trained = layer.output_elements, gives, trained or layer.parameters > 0
    return tuple(found)


def _part(layer: LayerFacts, ways: int, is_split: bool, following: Kind | None, split_convolutions: bool) -> Part:
    kind, shapes = _kind(layer), dict(layer.arrays)
    if ways == 1:
        return "whole"
    if kind == "attention":
        return "heads"
    if kind == "conv" and split_convolutions and shapes["kernel"][-1] % ways == 0:
        return "channels"
    if kind == "dense" and is_split:
        return "rows"
    # Columns pay when rows follow, which need no exchange in between, or at the end, where little is put together.
    if kind == "dense" and following in ("dense", None) and shapes["kernel"][-1] % ways == 0:
        return "columns"
    return "whole"


def _kind(layer: LayerFacts) -> Kind:
    shapes = dict(layer.arrays)
    if not shapes:
        return "shape"
    if "qkv_kernel" in shapes:
        return "attention"
    if "kernel" in shapes:
        return "conv" if len(shapes["kernel"]) == 4 else "dense"
    return "other"


@dataclass(frozen=True)
class Rows:
    """Workers in rows of `ways` that split a model between them; `count` rows are replicas."""

    ways: int
    count: int
    split_convolutions: bool

    @classmethod
    def of(cls, spec: RunSpec, knobs: Mapping[str, Scalar]) -> "Rows":
        """As the knobs say; workers that do not fill one row, which is refused, count as one."""
        ways = max(1, min(int(knobs.get("tensor", spec.workers)), spec.workers))
        return cls(ways, spec.workers // ways, knobs["convolutions"] == "split")

    def split(self, model: ModelFacts) -> tuple[Split, ...]:
        """Each layer's part."""
        return split_layers(model, self.ways, self.split_convolutions)


def why_not_split(spec: RunSpec, knobs: Mapping[str, Scalar], facts_of: FactsOf) -> str | None:
    """Why a model cannot be split so, in words, or None; of a user's model only the run itself can tell."""
    if spec.optimizer.name == "lbfgs":
        return f"{spec.strategy} keeps parameters apart and L-BFGS needs them in one place; use another optimizer"
    asked = int(knobs.get("tensor", spec.workers))
    if asked < 1 or spec.workers % asked:
        return (
            f"rows of {asked} need a multiple of {asked} workers and the run has {spec.workers}; "
            f"change the workers, or knob tensor"
        )
    if spec.model is not None or asked == 1:
        return None
    model = facts_of(spec)
    for layer in model.layers:
        if layer.heads is not None and layer.heads % asked:
            return f"{layer.heads} heads do not divide over {asked} workers; use a number that divides them"
    if all(split.part == "whole" for split in Rows.of(spec, knobs).split(model)):
        return f"nothing in {spec.workload} divides over {asked} workers; use a number that divides its layers' sizes"
    return None


def worker_model(splits: Sequence[Split], ways: int) -> ModelFacts:
    """What one worker holds and computes, as a model of its own."""
    return ModelFacts(tuple(_held(split, ways) for split in splits), splits[0].input_elements)


def _held(split: Split, ways: int) -> LayerFacts:
    layer = split.layer
    arrays = tuple((name, _shape(split.part, name, shape, ways)) for name, shape in layer.arrays)
    divided = split.part != "whole" or (split.kind == "shape" and split.takes_split)
    sizes = [math.prod(shape) for _, shape in arrays]
    # Norms, sums and the block's output are whole on every worker.
    whole = _WHOLE_OF_A_BLOCK * layer.output_elements if split.part == "heads" else 0
    parts = ways if split.gives_split or split.part == "heads" else 1
    return replace(
        layer,
        arrays=arrays,
        parameters=sum(sizes) if arrays else layer.parameters,
        forward_flops=layer.forward_flops // (ways if divided else 1),
        # An input that was put together is kept for the backward pass beside the output.
        kept_elements=whole + (layer.kept - whole) // parts + (split.input_elements if split.gathers_input else 0),
    )


def _shape(part: Part, name: str, shape: tuple[int, ...], ways: int) -> tuple[int, ...]:
    """An array's part on one worker, in the neutral layout: kernels have inputs before outputs."""
    match part_of_array(part, name):
        case "columns":
            return (*shape[:-1], shape[-1] // ways)
        case "rows":
            return (shape[0] // ways, *shape[1:])
    return shape


def part_of_array(part: Part, name: str) -> Literal["whole", "columns", "rows"]:
    """Whether one array of a layer is divided along its last dimension (columns), the one before (rows), or not."""
    owner, _, kind = name.rpartition("_")
    if part == "heads":
        part = "columns" if owner in _BLOCK_COLUMNS else "rows" if owner in _BLOCK_ROWS else "whole"
    if part in ("columns", "channels"):
        return "columns"
    return "rows" if part == "rows" and kind == "kernel" else "whole"


def tensor_footprint(spec: RunSpec, rows: Rows, model: ModelFacts, scatter: Collective = reduce_scatter) -> Footprint:
    """Each worker has its part of every layer; gradients are averaged between rows."""
    splits, samples = rows.split(model), spec.samples_per_step // rows.count
    held = worker_model(splits, rows.ways)
    average = during(
        all_reduce("gradients", held.parameter_bytes, rows.count), "backward", hidden=True, apart=rows.ways,
        piece_bytes=BUCKET_BYTES,
    )  # fmt: skip
    worker = RankFootprint(
        role="worker",
        ranks=spec.workers,
        flops=training_flops(held, samples),
        messages=(*tensor_messages(splits, rows.ways, samples, scatter), *average),
        parameter_bytes=held.parameter_bytes,
        # Gradients are averaged between rows in buckets beside them.
        gradient_bytes=held.parameter_bytes * (2 if average else 1),
        optimizer_bytes=optimizer_bytes(spec.optimizer, held.parameters, held.tensors),
        activation_bytes=held.activation_bytes * samples,
    )
    return Footprint((worker,))


def tensor_messages(
    splits: Sequence[Split], ways: int, samples: int, scatter: Collective = reduce_scatter
) -> tuple[Message, ...]:
    """What the workers of a row exchange in a step: sums and pieces of activations and of their gradients.

    `scatter` is what a backend makes of a reduce-scatter.
    """
    found: list[Message] = []
    for split in splits:
        name, scale = split.layer.name, samples * FLOAT_BYTES
        given, made = split.input_elements * scale, split.layer.output_elements * scale
        if split.part == "heads":
            for phase in PASSES:
                found += during(all_reduce(f"{phase} of {name}", made, ways), phase, count=_SUMS_OF_A_BLOCK)
            continue
        if split.gathers_input:
            found += during(all_gather(f"input of {name}", given, ways), "forward")
        if split.part in ("columns", "channels") and split.sends_back:
            back = scatter if split.gathers_input else all_reduce
            found += during(back(f"gradient of {name}'s input", given, ways), "backward")
        if split.part == "rows":
            found += during(all_reduce(f"output of {name}", made, ways), "forward")
        if split.gathers_output:
            found += during(all_gather(f"output of {name}", made, ways), "forward")
    return tuple(found)
