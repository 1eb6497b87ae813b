"""How single layers are split over workers for tensor parallelism, and what each worker then costs.

Shoeybi et al., "Megatron-LM", 2019: dense layers by columns, then rows; attention by heads; here also convolutions by
output channels. What runs and what a footprint counts are split by the same function, so that they agree.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from paceline.costs.cuts import FactsOf
from paceline.costs.footprint import FLOAT_BYTES, Footprint, ModelFacts, trainer
from paceline.costs.layers import ArraySplit, LayerFacts, LayerSplit, Splits
from paceline.costs.messages import Message, Phase, all_gather, all_reduce, during, scattered_reduction
from paceline.costs.precision import Numbers, parameter_width, reduction_width
from paceline.spec import RunSpec, Scalar

# What a backend makes of a reduce-scatter in a run, given its name, bytes and ranks.
Scatter = Callable[[RunSpec, str, float, int], tuple[Message, ...]]
PASSES: tuple[Phase, Phase] = ("forward", "backward")
# Gradients are averaged between rows in pieces of this size, as DistributedDataParallel does.
BUCKET_BYTES = 25 * 1024**2


@dataclass(frozen=True)
class Split:
    """How one layer is split in a tensor-parallel model."""

    layer: LayerFacts
    input_elements: int
    part: LayerSplit = "whole"
    # Whether its input arrives split over the workers, and its output leaves so.
    takes_split: bool = False
    gives_split: bool = False
    # Whether its output, made in parts, is put together at once.
    gathers_output: bool = False
    # Whether anything before it is trained, so that its input's gradient is wanted.
    sends_back: bool = False

    @property
    def gathers_input(self) -> bool:
        """Whether its input must be put together first, because the layer cannot work on a part of the features."""
        return self.takes_split and self.layer.kind != "shape" and "rows" not in self.layer.splits

    @property
    def sums(self) -> int:
        """How many all-reduces of partial results one pass through the layer needs: one per kernel split by rows."""
        return sum(self.array_split(array) == "rows" for array, _ in self.layer.arrays)

    @property
    def divided_arrays(self) -> int:
        """Arrays of modules that are divided: a kernel by rows and its whole bias are two."""
        owners = [array.rpartition("_")[0] for array, _ in self.layer.arrays]
        divided = {owner for owner, (array, _) in zip(owners, self.layer.arrays, strict=True)
                   if self.array_split(array) != "whole"}  # fmt: skip
        return sum(owner in divided for owner in owners)

    def array_split(self, array: str) -> ArraySplit:
        """How one of the layer's arrays is divided."""
        return self.layer.splits.get(self.part, {}).get(array, "whole")

    def array_shape(self, array: str, shape: tuple[int, ...], ways: int) -> tuple[int, ...]:
        """The shape of one worker's part of an array, in the neutral layout: kernels have inputs before outputs."""
        match self.array_split(array):
            case "columns" | "heads":
                return (*shape[:-1], shape[-1] // ways)
            case "rows":
                return (shape[0] // ways, *shape[1:])
        return shape


def split_layers(model: ModelFacts, ways: int, split_convolutions: bool) -> tuple[Split, ...]:
    """Each layer's part, as far as sizes divide; what does not divide stays whole on every worker."""
    splits: list[Split] = []
    elements, is_split, trained = model.input_elements, False, False
    # What the last layer gave that left its output whole: layers side by side all take that.
    whole_elements = elements
    for index, layer in enumerate(model.layers):
        following = next((after for after in model.layers[index + 1 :] if after.arrays), None)
        if layer.side_by_side:
            elements, is_split = whole_elements, False
        part = _part(layer, ways, is_split, following, split_convolutions)
        ends_here = following is None and part in ("columns", "channels")
        leaves_split = is_split if layer.kind == "shape" else part in ("columns", "channels") and not ends_here
        if is_split and part == "whole" and _is_within_pair(layer, model.layers[index + 1 :]):
            # Norms of single heads, say, take and give what a worker has of them.
            is_split, leaves_split = False, True
        splits.append(Split(layer, elements, part, is_split, leaves_split, ends_here, trained))
        elements, is_split, trained = layer.output_elements, leaves_split, trained or layer.parameters > 0
        whole_elements = whole_elements if leaves_split else elements
    return tuple(splits)


def _is_within_pair(layer: LayerFacts, after: Sequence[LayerFacts]) -> bool:
    """Whether a layer that is not split stands between layers side by side and the one by rows that goes with them."""
    pair: Splits = next((following.splits for following in after if len(following.splits) == 1), {})
    return not layer.splits and layer.kind != "shape" and pair.keys() == {"rows"}


def _part(
    layer: LayerFacts, ways: int, is_split: bool, following: LayerFacts | None, split_convolutions: bool
) -> LayerSplit:
    """The way in which a layer is split, chosen from those it declares."""
    if ways == 1:
        return "whole"
    if "heads" in layer.splits:
        return "heads"
    if "channels" in layer.splits and split_convolutions and _divides(layer, "channels", ways):
        return "channels"
    if "rows" in layer.splits and is_split:
        return "rows"
    # Columns pay when rows follow, which need no exchange in between, or at the end, where little is put together.
    pays = layer.side_by_side or following is None or "rows" in following.splits
    if "columns" in layer.splits and pays and _divides(layer, "columns", ways):
        return "columns"
    return "whole"


def _divides(layer: LayerFacts, part: LayerSplit, ways: int) -> bool:
    """Whether the last dimension of every array that would be divided is a multiple of the workers."""
    return all(shape[-1] % ways == 0 for array, shape in layer.arrays if array in layer.splits[part])


@dataclass(frozen=True)
class Rows:
    """Tensor-parallel groups of `ways` workers, of which there are `count` as data-parallel replicas."""

    ways: int
    count: int
    split_convolutions: bool

    @classmethod
    def of(cls, spec: RunSpec, knobs: Mapping[str, Scalar]) -> "Rows":
        """The groups that the knobs ask for; an incomplete group, which is refused elsewhere, counts as one."""
        ways = max(1, min(int(knobs.get("tensor", spec.workers)), spec.workers))
        return cls(ways, spec.workers // ways, knobs["convolutions"] == "split")

    def split(self, model: ModelFacts) -> tuple[Split, ...]:
        """How each layer of a model is split."""
        return split_layers(model, self.ways, self.split_convolutions)


def why_not_split(spec: RunSpec, knobs: Mapping[str, Scalar], facts_of: FactsOf) -> str | None:
    """Why a model cannot be split so, in words, or None; for a user's model only the run itself can tell."""
    if spec.optimizer.name == "lbfgs":
        return f"{spec.strategy} keeps parameters apart and L-BFGS needs them in one place; use another optimizer"
    ways = int(knobs.get("tensor", spec.workers))
    if ways < 1 or spec.workers % ways:
        return (
            f"rows of {ways} need a multiple of {ways} workers and the run has {spec.workers}; "
            f"change the workers, or knob tensor"
        )
    if spec.model is not None or ways == 1:
        return None
    model = facts_of(spec)
    for layer in model.layers:
        if layer.heads is not None and layer.heads % ways:
            return f"{layer.heads} heads do not divide over {ways} workers; use a number that divides them"
    if all(split.part == "whole" for split in Rows.of(spec, knobs).split(model)):
        return f"nothing in {spec.workload} divides over {ways} workers; use a number that divides its layers' sizes"
    return None


def worker_model(splits: Sequence[Split], ways: int) -> ModelFacts:
    """What one worker holds and computes, as a model of its own."""
    return ModelFacts(tuple(_held(split, ways) for split in splits), splits[0].input_elements)


def _held(split: Split, ways: int) -> LayerFacts:
    layer = split.layer
    arrays = tuple((name, split.array_shape(name, shape, ways)) for name, shape in layer.arrays)
    divided = split.part != "whole" or (layer.kind == "shape" and split.takes_split)
    sizes = [math.prod(shape) for _, shape in arrays]
    whole = layer.unsplit_elements if split.part != "whole" else 0
    parts = ways if split.gives_split or split.part == "heads" else 1
    return replace(
        layer,
        arrays=arrays,
        parameters=sum(sizes) if arrays else layer.parameters,
        forward_flops=layer.forward_flops // (ways if divided else 1),
        # An input that was put together is kept for the backward pass beside the output.
        kept_elements=whole + (layer.kept - whole) // parts + (split.input_elements if split.gathers_input else 0),
        single_elements=layer.single_elements // parts,
    )


def tensor_footprint(
    spec: RunSpec, rows: Rows, model: ModelFacts, scatter: Scatter = scattered_reduction, *, width: int = FLOAT_BYTES,
    numbers: Numbers = "single",
) -> Footprint:  # fmt: skip
    """Each worker has its part of every layer; gradients are averaged between rows. `width` is of an activation."""
    splits, samples = rows.split(model), spec.samples_per_step // rows.count
    part = worker_model(splits, rows.ways)
    average = during(
        all_reduce("gradients", part.parameters * reduction_width(spec), rows.count), "backward", hidden=True,
        apart=rows.ways, piece_bytes=BUCKET_BYTES,
    )  # fmt: skip
    worker = trainer(
        spec,
        part,
        (*tensor_messages(spec, splits, rows.ways, samples, scatter, width), *average),
        samples=samples,
        numbers=numbers,
        # Gradients are averaged between rows in buckets beside them.
        gradient_bytes=part.parameters * (parameter_width(spec) + (reduction_width(spec) if average else 0)),
    )
    return Footprint((worker,))


def tensor_messages(
    spec: RunSpec, splits: Sequence[Split], ways: int, samples: float, scatter: Scatter = scattered_reduction,
    width: int = FLOAT_BYTES,
) -> tuple[Message, ...]:  # fmt: skip
    """What the workers of one tensor-parallel group exchange in a step."""
    messages: list[Message] = []
    for split in splits:
        name, scale = split.layer.name, samples * width
        input_bytes, output_bytes = split.input_elements * scale, split.layer.output_elements * scale
        if split.part == "heads":
            for phase in PASSES:
                messages += during(all_reduce(f"{phase} of {name}", output_bytes, ways), phase, count=split.sums)
            continue
        if split.gathers_input:
            messages += during(all_gather(f"input of {name}", input_bytes, ways), "forward")
        if split.part in ("columns", "channels") and split.sends_back:
            back = partial(scatter, spec) if split.gathers_input else all_reduce
            messages += during(back(f"gradient of {name}'s input", input_bytes, ways), "backward")
        if split.part == "rows":
            messages += during(all_reduce(_sum_of(name), output_bytes, ways), "forward")
        if split.gathers_output:
            messages += during(all_gather(f"output of {name}", output_bytes, ways), "forward")
    return tuple(messages)


def made_again(splits: Sequence[Split], messages: Sequence[Message], around: bool) -> list[Message]:
    """Sums of a forward pass that are made once more where each block of a user's model is computed again.

    The backward pass needs nothing that comes after a block's last sum: that is made again only where blocks are run
    again as wholes, `around` what is compiled.
    """
    rows = [split.layer.name for split in splits if split.part == "rows"]
    last_of_blocks = {_block_of(name): name for name in rows}.values()
    again = {_sum_of(name) for name in rows if _block_of(name) and (around or name not in last_of_blocks)}
    return [replace(message, phase="backward") for message in messages if message.name in again]


def _sum_of(name: str) -> str:
    return f"output of {name}"


def _block_of(name: str) -> str:
    """`layers.3` of `layers.3.mlp.down`: what lists of modules number their blocks by; empty outside of them."""
    words = name.split(".")
    number = next((place for place, word in enumerate(words) if word.isdecimal()), None)
    return ".".join(words[: number + 1]) if number is not None else ""
