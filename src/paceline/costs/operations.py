"""A step as operations: what a device is asked to do for each layer, with shapes and numbers; the trace of a step.

A trace of a PyTorch model gives them as they are; those of built-in layers are worked out from their facts.
"""

from dataclasses import dataclass
from typing import Literal

# Products, convolutions, attention and recurrent layers are bound by arithmetic as a rule, `memory` by bytes alone; an
# update is the optimizer's.
OperationKind = Literal["product", "convolution", "attention", "recurrent", "memory", "update"]
# What an operation multiplies with; sums may be wider.
OperationNumbers = Literal["fp32", "tf32", "bf16", "fp16"]
NUMBER_BYTES: dict[OperationNumbers, int] = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}
# Products of a backward pass of attention over those of its forward pass: scores are computed again (Dao et al., 2022).
ATTENTION_BACKWARD = 2.5
# Input, forget, cell and output of an LSTM; reset, update and new of a GRU.
LSTM_GATES, GRU_GATES = 4, 3
# Recurrent layers by their gates, as operations are named; one of an LSTM goes without.
RECURRENT_NAMES = {LSTM_GATES: "", GRU_GATES: "gru", 1: "rnn"}
# Bytes for each parameter that an update reads and writes, by optimizer: the parameter and its state twice, the
# gradient once, in single precision.
UPDATE_BYTES = {"adam": 28, "adagrad": 20, "momentum": 20, "sgd": 12}


# The name of the last of a step's layers.
LOSS = "loss"


@dataclass(frozen=True)
class Operation:
    """One operation of a device, executed `count` times in a pass.

    `shape` is, by kind: product (batch, rows, columns, inner); convolution (samples, input channels, height, width,
    output channels, kernel height, kernel width, stride, groups); attention (samples, heads, key heads, queries, keys,
    head width, 1 where causal); recurrent (positions, samples, inputs, width, directions); memory, update (numbers,).
    """

    kind: OperationKind
    numbers: OperationNumbers
    shape: tuple[int, ...]
    flops: float
    # Read and written, each array once.
    moved_bytes: float
    # As the framework calls it, where a trace has seen it.
    name: str = ""
    count: float = 1
    # Whether it is part of a backward pass; kernels of gradients are others.
    backward: bool = False
    # Whether the host waits until it is done before it asks for the next one.
    waits: bool = False
    # Of a product: whether it sums over the rows of both factors, as gradients of weights do; kernels are others again.
    sums_rows: bool = False
    # The very call of the framework as text, where a trace was asked to keep it: a device can be asked to repeat it.
    call: str = ""
    # Whether kernels of that call do it unseen: where the call was repeated and timed, it is part of that time.
    inside_call: bool = False

    @property
    def plain_name(self) -> str:
        """Its name without library and variant: `add` of `aten::add.Tensor`."""
        return self.name.replace("::", ".").removeprefix("aten.").split(".")[0]

    @property
    def update_name(self) -> str:
        """The optimizer's name for an update: `adam` of `_fused_adam_`, and of AdamW, which moves as much."""
        name = self.plain_name.removesuffix("_").removeprefix("_fused_")
        return "adam" if name == "adamw" else name


@dataclass(frozen=True)
class LayerOperations:
    """The operations of a layer's forward and backward pass, in order; recomputed ones open the backward pass."""

    layer: str
    forward: tuple[Operation, ...]
    backward: tuple[Operation, ...]


@dataclass(frozen=True)
class StepOperations:
    """One pass of a batch through all layers, the loss as the last of them, and the update."""

    layers: tuple[LayerOperations, ...]
    update: tuple[Operation, ...]


def product(
    numbers: OperationNumbers, rows: int, columns: int, inner: int, *, batch: int = 1, backward: bool = False,
    sums_rows: bool = False,
) -> Operation:  # fmt: skip
    """A product of matrices, or of a batch of them."""
    moved = batch * (rows * inner + inner * columns + rows * columns) * NUMBER_BYTES[numbers]
    shape = (batch, rows, columns, inner)
    flops = 2.0 * batch * rows * columns * inner
    return Operation("product", numbers, shape, flops, moved, backward=backward, sums_rows=sums_rows)


def convolution(
    numbers: OperationNumbers, shape: tuple[int, ...], *, backward: bool = False, gradients: int = 2
) -> Operation:
    """A convolution padded by half its kernel; its backward pass computes gradients of weights and inputs."""
    samples, inputs, height, width, outputs, kernel_height, kernel_width, stride, groups = shape
    read = samples * inputs * height * width
    written = samples * outputs * ((height - 1) // stride + 1) * ((width - 1) // stride + 1)
    inner = inputs // groups * kernel_height * kernel_width
    passes = gradients if backward else 1
    # The gradient of the input is one more of its size.
    moved = (passes * read + written + outputs * inner) * NUMBER_BYTES[numbers]
    return Operation("convolution", numbers, shape, 2.0 * written * inner * passes, moved, backward=backward)


def attention(
    numbers: OperationNumbers, samples: int, heads: tuple[int, int], length: tuple[int, int], width: int, *,
    causal: bool, backward: bool = False,
) -> Operation:  # fmt: skip
    """Fused attention; `heads` and `length` are pairs: those of queries and those of keys."""
    queries, keys = samples * heads[0] * length[0] * width, samples * heads[1] * length[1] * width
    flops = 4.0 * samples * heads[0] * length[0] * length[1] * width / (2 if causal else 1)
    moved = (2 * queries + 2 * keys) * NUMBER_BYTES[numbers]
    return Operation(
        "attention", numbers, (samples, *heads, *length, width, int(causal)),
        flops * (ATTENTION_BACKWARD if backward else 1), moved * (2 if backward else 1), backward=backward,
    )  # fmt: skip


def recurrent(
    numbers: OperationNumbers, shape: tuple[int, ...], *, backward: bool = False, gates_of_cell: int = LSTM_GATES
) -> Operation:
    """A recurrent layer over whole sequences, usually of an LSTM; back, it computes gradients of weights and inputs."""
    length, samples, inputs, width, directions = shape
    gates = gates_of_cell * width * directions
    positions, passes = length * samples, 2 if backward else 1
    # What it is given and makes, its gates, and its weights.
    moved = (positions * (inputs + width * directions + gates) + gates * (inputs + width)) * NUMBER_BYTES[numbers]
    flops = 2.0 * positions * gates * (inputs + width)
    return Operation(
        "recurrent", numbers, shape, flops * passes, float(moved * passes), RECURRENT_NAMES[gates_of_cell],
        backward=backward,
    )  # fmt: skip


def memory(
    numbers: OperationNumbers, elements: float, arrays: float, name: str = "", *, backward: bool = False,
    count: float = 1, waits: bool = False,
) -> Operation:  # fmt: skip
    """A memory-bound operation that reads and writes `arrays` arrays of so many elements."""
    moved = elements * arrays * NUMBER_BYTES[numbers]
    shape = (max(1, round(elements)),)
    return Operation("memory", numbers, shape, elements, moved, name=name, backward=backward, count=count, waits=waits)


def update(optimizer: str, parameters: float) -> Operation:
    """The optimizer's update, as one kernel for all arrays."""
    moved = parameters * UPDATE_BYTES[optimizer]
    return Operation("update", "fp32", (max(1, round(parameters)),), parameters, moved, name=optimizer)


def operation_of(
    kind: OperationKind, numbers: OperationNumbers, shape: tuple[int, ...], *, backward: bool = False,
    sums_rows: bool = False,
) -> Operation:  # fmt: skip
    """The product, convolution, attention or LSTM layer of that shape."""
    if kind == "product":
        batch, rows, columns, inner = shape
        return product(numbers, rows, columns, inner, batch=batch, backward=backward, sums_rows=sums_rows)
    if kind == "convolution":
        return convolution(numbers, shape, backward=backward)
    if kind == "recurrent":
        return recurrent(numbers, shape, backward=backward)
    samples, heads, key_heads, queries, keys, width, causal = shape
    return attention(
        numbers, samples, (heads, key_heads), (queries, keys), width, causal=bool(causal), backward=backward
    )
