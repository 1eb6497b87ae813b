"""Operations of the part of a transformer that one rank computes: its layers, split over ranks, recomputed or not."""

from functools import lru_cache
from typing import Literal

from paceline.costs.footprint import RankWork
from paceline.costs.layers import LayerFacts
from paceline.costs.layouts import transformer_role
from paceline.costs.operations import LayerOperations, Operation, OperationNumbers, attention, memory, product
from paceline.spec import Recompute

# Whether scores stay within one kernel, or are written to memory and read by the next.
AttentionKernel = Literal["fused", "unfused"]
# Arrays as large as the block's input that a forward pass reads and writes beside products: two norms (2 each), two
# sums with what went past (3 each).
NORM_ARRAYS, SUM_ARRAYS = 2, 3
# Of the network's inner activations: read and written by the activation; a gate is read beside.
ACTIVATION_ARRAYS, GATED_ARRAYS = 2, 3
# Of unfused scores: scaled and masked, softmax (each read and written), and read as probabilities.
SCORE_ARRAYS = 5
# Of logits in single precision: cast, largest, exponentials, sum, loss; and twice as many for the gradient.
LOGIT_ARRAYS, LOGIT_ARRAYS_BACK = 6, 8
# A backward pass reads what a forward pass read beside the gradient that comes and the one that goes.
MEMORY_BACKWARD = 1.5
_COLUMN_KERNELS = ("qkv_kernel", "q_kernel", "k_kernel", "v_kernel", "gate_kernel", "up_kernel")
_ROW_KERNELS = ("out_kernel", "down_kernel")


def operations_known(work: RankWork) -> bool:
    """Whether operations of all its layers can be told: those of dense causal transformers."""
    return bool(work.model.layers) and all(
        transformer_role(layer) is not None and not layer.experts for layer, _ in work.model.runs
    )


@lru_cache(maxsize=8192)
def rank_operations(
    layer: LayerFacts, samples: float, ways: int, stretches: int, recompute: Recompute, kernel: AttentionKernel,
    numbers: OperationNumbers,
) -> LayerOperations:  # fmt: skip
    """Both passes of a rank's part of one layer."""
    role, rows = transformer_role(layer), samples / stretches
    if role == "block":
        forward, backward = _block(layer, rows, ways, stretches, kernel, numbers)
        if recompute == "full":
            backward = (*forward, *backward)
    elif role == "head":
        forward, backward = _head(layer, rows, ways, numbers)
    else:
        elements = layer.output_elements * rows / ways
        forward = (memory(numbers, elements, NORM_ARRAYS),)
        backward = (memory(numbers, elements, NORM_ARRAYS * MEMORY_BACKWARD, backward=True),)
    return LayerOperations(layer.name, forward, backward)


def _block(
    layer: LayerFacts, rows: float, ways: int, stretches: int, kernel: AttentionKernel, numbers: OperationNumbers
) -> tuple[tuple[Operation, ...], tuple[Operation, ...]]:
    arrays = dict(layer.arrays)
    width = arrays["norm1_scale"][0]
    length = layer.output_elements // width
    tokens = round(length * rows)
    forward: list[Operation] = []
    backward: list[Operation] = []
    for name in (*_COLUMN_KERNELS, *_ROW_KERNELS):
        if name in arrays:
            inner, columns = arrays[name]
            split = (inner, -(-columns // ways)) if name in _COLUMN_KERNELS else (-(-inner // ways), columns)
            made, back = _products(numbers, tokens, *split)
            forward.append(made)
            backward += back
    made_by, gone_back = _attention(layer, rows * stretches, ways, stretches, width, length, kernel, numbers)
    hidden = arrays["up_kernel"][1]
    gated = GATED_ARRAYS if "gate_kernel" in arrays else ACTIVATION_ARRAYS
    elements = layer.output_elements * rows / ways
    streamed = (
        memory(numbers, elements, NORM_ARRAYS, count=2),
        memory(numbers, elements, SUM_ARRAYS, count=2),
        memory(numbers, tokens * hidden / ways, gated),
    )
    streamed_back = tuple(
        memory(numbers, operation.shape[0], arrays_read * MEMORY_BACKWARD, backward=True, count=operation.count)
        for operation, arrays_read in zip(streamed, (NORM_ARRAYS, SUM_ARRAYS, gated), strict=True)
    )
    return (*forward, *made_by, *streamed), (*backward, *gone_back, *streamed_back)


def _products(
    numbers: OperationNumbers, rows: int, inner: int, columns: int, batch: int = 1
) -> tuple[Operation, tuple[Operation, Operation]]:
    """A product, and those of the gradients of what it is given and of its kernel."""
    made = product(numbers, rows, columns, inner, batch=batch)
    of_inputs = product(numbers, rows, inner, columns, batch=batch, backward=True)
    return made, (of_inputs, product(numbers, inner, columns, rows, batch=batch, backward=True))


def _attention(
    layer: LayerFacts, samples: float, ways: int, stretches: int, width: int, length: int, kernel: AttentionKernel,
    numbers: OperationNumbers,
) -> tuple[tuple[Operation, ...], tuple[Operation, ...]]:  # fmt: skip
    """Of whole samples' queries, of which a rank has a stretch, over all keys."""
    assert layer.heads is not None
    heads, shared = max(1, layer.heads // ways), max(1, (layer.kv_heads or layer.heads) // ways)
    queries, head_width = length // stretches, width // layer.heads
    count = max(1, round(samples))
    if kernel == "fused":
        sizes = (numbers, count, (heads, shared), (queries, length), head_width)
        return (attention(*sizes, causal=True),), (attention(*sizes, causal=True, backward=True),)
    scores, back_of_scores = _products(numbers, queries, head_width, length, count * heads)
    values, back_of_values = _products(numbers, queries, length, head_width, count * heads)
    elements = count * heads * queries * length
    return (
        (scores, values, memory(numbers, elements, SCORE_ARRAYS)),
        (*back_of_scores, *back_of_values, memory(numbers, elements, SCORE_ARRAYS, backward=True)),
    )


def _head(
    layer: LayerFacts, rows: float, ways: int, numbers: OperationNumbers
) -> tuple[tuple[Operation, ...], tuple[Operation, ...]]:
    """The product over the vocabulary and the loss, whose logits are in single precision."""
    width, vocabulary = (layer.tied[1], layer.tied[0]) if layer.tied else dict(layer.arrays)["kernel"]
    tokens, columns = round(layer.output_elements // vocabulary * rows), -(-vocabulary // ways)
    made, back = _products(numbers, tokens, width, columns)
    logits = tokens * columns
    return (
        (made, memory("fp32", logits, LOGIT_ARRAYS)),
        (*back, memory("fp32", logits, LOGIT_ARRAYS_BACK, backward=True)),
    )
