"""How many bytes the numbers of a run have: what is held, what passes compute and keep, what workers add up."""

import math
from collections.abc import Iterable
from typing import Literal

from paceline.costs.layers import LayerFacts
from paceline.spec import Precision, RunSpec

FLOAT_BYTES, HALF_BYTES = 4, 2
HALVES: tuple[Precision, ...] = ("bf16", "fp16", "bf16-pure")
# In what a pass keeps its results: in single precision, as autocast chooses for each operation, or all cast to half.
Numbers = Literal["single", "autocast", "cast"]
# Whose operations autocast makes in half precision.
_CAST_KINDS = ("attention", "convolution", "dense")


def is_half(spec: RunSpec) -> bool:
    """Whether passes compute in numbers of two bytes."""
    return spec.precision in HALVES


def autocast_numbers(spec: RunSpec) -> Numbers:
    """What passes keep where the parameters are whole: cast, if they themselves are in half precision."""
    if spec.precision == "bf16-pure":
        return "cast"
    return "autocast" if is_half(spec) else "single"


def cast_numbers(spec: RunSpec) -> Numbers:
    """What passes keep where FSDP casts parameters and inputs."""
    return "cast" if is_half(spec) else "single"


def parameter_width(spec: RunSpec) -> int:
    """Bytes of a parameter as it is held, of its gradient and of its optimizer state."""
    return HALF_BYTES if spec.precision == "bf16-pure" else FLOAT_BYTES


def compute_width(spec: RunSpec) -> int:
    """Bytes of an activation between layers, and of a parameter that FSDP gathers."""
    return HALF_BYTES if is_half(spec) else FLOAT_BYTES


def reduction_width(spec: RunSpec) -> int:
    """Bytes of a gradient on its way between workers: as it is held, unless the run says otherwise."""
    if spec.reduction is None:
        return parameter_width(spec)
    return HALF_BYTES if spec.reduction == "bf16" else FLOAT_BYTES


def kept_bytes(layer: LayerFacts, numbers: Numbers) -> int:
    """Bytes that a layer keeps of one sample for the backward pass."""
    if numbers == "single":
        return layer.kept * FLOAT_BYTES
    wide = layer.single_elements + (layer.summed_elements if numbers == "autocast" else 0)
    return layer.kept * HALF_BYTES + wide * (FLOAT_BYTES - HALF_BYTES)


def autocast_copies(layers: Iterable[LayerFacts], numbers: Numbers, goes_on: bool = False) -> int:
    """Bytes of the kernels in half precision that autocast makes in a pass and keeps for the way back.

    `goes_on` is whether the way back goes on below the first layer; if not, a dense one has no use for its kernel.
    """
    copies = 0
    for layer in layers if numbers == "autocast" else ():
        if layer.kind in _CAST_KINDS and (goes_on or layer.kind != "dense"):
            copies += sum(math.prod(shape) for _, shape in layer.arrays if len(shape) > 1) * HALF_BYTES
        goes_on = goes_on or layer.parameters > 0
    return copies
