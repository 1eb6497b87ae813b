"""Operations of both passes of a layer as they are noted down: products, casts and passes over memory by name."""

from collections.abc import Iterator
from dataclasses import dataclass

from paceline.costs.operations import LayerOperations, Operation, OperationNumbers, memory, product
from paceline.spec import Precision

# What passes multiply with, by the run's precision.
MULTIPLIED: dict[Precision, OperationNumbers] = {
    "fp32": "fp32", "tf32": "tf32", "bf16": "bf16", "fp16": "fp16", "bf16-pure": "bf16",
}  # fmt: skip
# Under autocast parameters stay wide and are cast before each product.
AUTOCAST = ("bf16", "fp16")
# Arrays that memory-bound operations read and write, by what PyTorch calls them.
ARRAYS = {
    "add": 3, "mul": 3, "gelu": 2, "gelu_backward": 3, "gelu_tanh": 2, "gelu_tanh_backward": 3, "relu": 2,
    "threshold_backward": 3, "silu": 2, "silu_backward": 3, "native_layer_norm": 2, "native_layer_norm_backward": 3,
    "_fused_rms_norm": 2, "_fused_rms_norm_backward": 3, "native_group_norm": 2, "native_group_norm_backward": 3,
    "sum": 1, "clone": 2, "contiguous": 2, "_log_softmax": 2, "_log_softmax_backward_data": 3, "embedding": 2,
    "embedding_dense_backward": 3, "cat": 2, "neg": 2, "copy_": 2, "max_pool2d_with_indices": 2,
    "max_pool2d_with_indices_backward": 3, "select_backward": 4 / 3, "mean": 1, "div": 2, "index": 2, "fill_": 1,
}  # fmt: skip
CAST = "_to_copy"


@dataclass(frozen=True)
class Pass:
    """One batch through a layer: the number of samples, the precision, and what the layer is given."""

    samples: int
    precision: Precision
    # Numbers of one sample that the layer takes, and whether their gradient is wanted.
    input_elements: int = 0
    sends_back: bool = True
    # Over how many ranks positions are divided where layers are whole: norms and sums of a block that is split.
    stretches: int = 1
    # Over how many ranks sequences are divided throughout, each of which gathers the keys and values of all.
    context: int = 1
    # Whether positions lie behind samples, so that what ranks exchange of them is copied.
    copies_exchanges: bool = True

    @property
    def numbers(self) -> OperationNumbers:
        """The precision in which products are computed."""
        return MULTIPLIED[self.precision]

    @property
    def wide(self) -> OperationNumbers:
        """The precision of what autocast leaves in single precision: sums, norms, the loss."""
        return "fp32" if self.precision in AUTOCAST else self.numbers

    def cast(self, elements: float, *, backward: bool = False) -> Iterator[Operation]:
        """A cast of so many elements to two bytes, where autocast makes one."""
        if self.precision in AUTOCAST:
            # Four bytes are read and two written.
            yield memory("bf16", elements, 3, CAST, backward=backward)

    def widen(self, elements: float, *, backward: bool = False) -> Iterator[Operation]:
        """A cast of so many elements back to four bytes."""
        if self.precision in AUTOCAST:
            yield memory("fp32", elements, 1.5, CAST, backward=backward)


@dataclass
class PassOperations:
    """The operations of a forward pass, each recorded with the operations that its backward pass needs."""

    forward: list[Operation]
    backward: list[list[Operation]]

    def add(self, forward: list[Operation], backward: list[Operation]) -> None:
        """Records an operation of the forward pass together with its backward operations."""
        self.forward += forward
        self.backward.append(backward)

    def operations(self, name: str) -> LayerOperations:
        """Both passes; the backward operations are in reverse order."""
        return LayerOperations(name, tuple(self.forward), tuple(op for part in reversed(self.backward) for op in part))


def dense(
    passes: PassOperations,
    on: Pass,
    sizes: tuple[int, int, int],
    *,
    bias: bool,
    sends_back: bool = True,
    wide: bool = False,
) -> None:
    """A product of (rows, inner, columns) with a kernel, with its bias; the bias gradient is a sum.

    Under autocast an input that is `wide` is cast, once more for each product that takes it.
    """
    rows, inner, columns = sizes
    n, kernel = on.numbers, inner * columns
    if wide:
        passes.add([*on.cast(rows * inner)], [*on.widen(rows * inner, backward=True)] if sends_back else [])
    back = [product(n, rows, inner, columns, backward=True)] if sends_back else []
    back += [product(n, columns, inner, rows, backward=True, sums_rows=True), *on.widen(kernel, backward=True)]
    if bias:
        back += [memory(n, rows * columns, ARRAYS["sum"], "sum", backward=True), *on.widen(columns, backward=True)]
    casts = [*on.cast(kernel), *(on.cast(columns) if bias else ())]
    passes.add([*casts, product(n, rows, columns, inner)], back)


def pointwise(passes: PassOperations, numbers: OperationNumbers, elements: float, forward: str, *backward: str) -> None:
    """Memory-bound operations over so many elements, given by name."""
    names = forward.split()
    passes.add(
        [memory(numbers, elements, ARRAYS[name], name) for name in names],
        [memory(numbers, elements, ARRAYS[name], name, backward=True) for name in backward],
    )


def norm(passes: PassOperations, on: Pass, elements: int, *, rms: bool) -> None:
    """A norm over features, in the numbers that autocast leaves wide."""
    name = "_fused_rms_norm" if rms else "native_layer_norm"
    pointwise(passes, on.wide, elements, name, f"{name}_backward")
