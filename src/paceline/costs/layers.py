"""What is known of a layer without any framework: its sizes, its work, its kind, and how workers may split it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

# A device's speed is calibrated for each of these; "shape" stands for layers without parameters.
LayerKind = Literal["attention", "convolution", "dense", "other", "shape"]
# How a layer is split over workers: not at all, by output features, by input features, by output channels of a
# convolution, by attention heads.
LayerSplit = Literal["whole", "columns", "rows", "channels", "heads"]
# How one of its arrays is then divided: not at all, along its last dimension, along the one before, or along its last
# dimension where that holds queries, keys and values in turn, each of them head by head.
ArraySplit = Literal["whole", "columns", "rows", "heads"]
# The ways in which a layer can be split, each with the arrays that are divided; all others are whole on every worker.
Splits = Mapping[LayerSplit, Mapping[str, ArraySplit]]

DENSE_SPLITS: Splits = {"columns": {"kernel": "columns", "bias": "columns"}, "rows": {"kernel": "rows"}}
CONVOLUTION_SPLITS: Splits = {"channels": {"kernel": "columns", "bias": "columns"}}
# Of a layer that is split in one way: by columns beside others that take the same input, or by rows after them.
PAIRED_SPLITS: Mapping[str, Splits] = {way: {way: arrays} for way, arrays in DENSE_SPLITS.items()}
_USUAL_SPLITS: Mapping[str, Splits] = {"dense": DENSE_SPLITS, "convolution": CONVOLUTION_SPLITS}

Arrays = tuple[tuple[str, tuple[int, ...]], ...]
# A convolution's kernel has four dimensions, in any layout.
_CONVOLUTION_DIMENSIONS = 4


@dataclass(frozen=True)
class LayerFacts:
    """One layer's size per sample, read from the model and never typed by hand."""

    name: str
    parameters: int
    forward_flops: int
    output_elements: int
    # How many arrays the parameters are in.
    tensors: int = 0
    # Their names and shapes in the neutral layout; empty where only the counts are known.
    arrays: Arrays = ()
    # The same of parameters that are held and computed with but not trained, which `parameters` does not count.
    frozen_arrays: Arrays = ()
    # Numbers of four bytes that stay for the backward pass; the output alone where nothing is said.
    kept_elements: int | None = None
    # Of attention: heads, each of which stays whole; those of keys and values, where queries share them.
    heads: int | None = None
    kv_heads: int | None = None
    # Whether each position sees those before it only.
    causal: bool = True
    # Of a mixture of experts: how many there are, and how many each token goes to.
    experts: int = 0
    chosen_experts: int = 0
    # Of a transformer block: numbers that its products and its attention make, those of its two sums aside.
    product_elements: int = 0
    # Of those, the attention's sums: one for each head and position.
    attention_sums: int = 0
    # Where it computes with the first layer's table of tokens: the shape of that.
    tied: tuple[int, int] | None = None
    # Declared by the layer, or derived from the arrays where only those are known.
    kind: LayerKind = None  # type: ignore[assignment]  # filled in below
    splits: Splits = field(default=None, compare=False)  # type: ignore[arg-type]  # filled in below
    # Of what it keeps: numbers that every worker holds in full even where the layer is split.
    unsplit_elements: int = 0
    # Of what it keeps: numbers that have four bytes in every precision, such as indices and statistics.
    single_elements: int = 0
    # Of what it keeps: sums that autocast leaves in four bytes and a model that was cast has in two.
    summed_elements: int = 0

    def __post_init__(self) -> None:
        """Facts from files and processes that say nothing of kind and splits get those that their arrays suggest."""
        if self.kind is None:
            object.__setattr__(self, "kind", kind_of_arrays(self.arrays))
        if self.splits is None:
            usual = _USUAL_SPLITS.get(str(self.kind), {}) if "kernel" in dict(self.arrays) else {}
            object.__setattr__(self, "splits", usual)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "LayerFacts":
        """A layer's facts as another process sent them in JSON, with lists turned back into tuples."""
        arrays = {
            key: tuple((name, tuple(shape)) for name, shape in values.get(key, ()))
            for key in ("arrays", "frozen_arrays")
        }
        return cls(**{**values, **arrays})

    @cached_property
    def frozen_parameters(self) -> int:
        """How many numbers are held and not trained."""
        return sum(math.prod(shape) for _, shape in self.frozen_arrays)

    @property
    def unfrozen(self) -> "LayerFacts":
        """The layer as if all its parameters were trained."""
        if not self.frozen_arrays:
            return self
        return replace(
            self,
            arrays=(*self.arrays, *self.frozen_arrays),
            frozen_arrays=(),
            parameters=self.parameters + self.frozen_parameters,
            tensors=self.tensors + len(self.frozen_arrays),
        )

    @property
    def side_by_side(self) -> bool:
        """Whether it is split by columns beside others that take the same input, as queries, keys and values are."""
        return self.splits.keys() == {"columns"}

    @property
    def kept(self) -> int:
        """Bytes of one sample's activations that the layer keeps for its backward pass."""
        return self.output_elements if self.kept_elements is None else self.kept_elements


def kind_of_arrays(arrays: Arrays) -> LayerKind:
    """The kind of a layer of which only the arrays are known."""
    shapes = dict(arrays)
    if "qkv_kernel" in shapes or "q_kernel" in shapes:
        return "attention"
    if any(len(shape) == _CONVOLUTION_DIMENSIONS for shape in shapes.values()):
        return "convolution"
    if "kernel" in shapes or "weight" in shapes:
        return "dense"
    return "other" if shapes else "shape"
