"""Operations of a transformer block: what PyTorch asks a device for in each pass."""

from dataclasses import replace

from paceline.costs.layers import LayerFacts
from paceline.costs.operations import LayerOperations, attention, memory
from paceline.costs.pass_operations import ARRAYS, Pass, PassOperations, dense, norm, pointwise

# Rotating queries or keys: cosines, sines and their sum, and a copy with the halves exchanged; its backward pass adds
# what both halves give.
ROTATION, ROTATION_BACK = ("neg", "cat", "mul", "mul", "add"), ("mul", "mul", "neg", "cat", "add", "add")
# Of a mixture: softmax, choice, sorting, counting and gathering beside the experts' own products.
ROUTING, ROUTING_BACK = 12, 10
# How gradients of queries, keys and values become one.
JOINED = ("select_backward", "select_backward", "add", "select_backward", "add", "clone")


def block_operations(layer: LayerFacts, on: Pass) -> LayerOperations:
    """The operations of a transformer block (GPT, encoder, Llama or mixture); `arrays` may be a worker's part."""
    shapes, passes = dict(layer.arrays), PassOperations([], [])
    width = shapes["norm1_scale"][0]
    tokens = on.samples * layer.output_elements // width
    length = layer.output_elements // width
    elements = tokens * width // on.stretches
    norm(passes, on, elements, rms="norm1_shift" not in shapes)
    _exchange(passes, on, tokens * width)
    _attend(passes, layer, on, tokens, length, width)
    _exchange(passes, on, tokens * width)
    _add(passes, on, elements)
    norm(passes, on, elements, rms="norm2_shift" not in shapes)
    # Experts take vectors of single positions, wherever these are.
    gathered = 0 if "experts_gate" in shapes else tokens * width
    _exchange(passes, on, gathered)
    if "experts_gate" in shapes:
        _experts(passes, layer, on, tokens // on.stretches, width)
    elif "gate_kernel" in shapes:
        _gated(passes, on, tokens, width, shapes["gate_kernel"][1])
    else:
        hidden = shapes["up_kernel"][1]
        dense(passes, on, (tokens, width, hidden), bias=True, wide=True)
        # GPT's is by tanh (Radford et al., 2019), an encoder's is exact.
        gelu = "gelu_tanh" if layer.causal else "gelu"
        pointwise(passes, on.numbers, tokens * hidden, gelu, f"{gelu}_backward")
        dense(passes, on, (tokens, hidden, width), bias=True)
    _exchange(passes, on, gathered)
    _add(passes, on, elements)
    return passes.operations(layer.name)


def _exchange(passes: PassOperations, on: Pass, elements: int) -> None:
    """Positions that are gathered from ranks or scattered to them are copied from or to one piece for each rank."""
    if on.stretches > 1 and on.copies_exchanges and elements:
        pointwise(passes, on.numbers, elements, "cat", "cat")


def _add(passes: PassOperations, on: Pass, elements: int) -> None:
    """A residual addition; in the backward pass the two gradients are added."""
    added = memory(on.wide, elements, ARRAYS["add"], "add")
    passes.add([added], [replace(added, backward=True), *on.cast(elements, backward=True)])


def _attend(passes: PassOperations, layer: LayerFacts, on: Pass, tokens: int, length: int, width: int) -> None:
    """Projections to queries, keys and values, rotary positions if any, fused attention, and the output projection."""
    shapes, heads = dict(layer.arrays), layer.heads or 1
    head_width = width // heads
    if "qkv_kernel" in shapes:
        projected_width = shapes["qkv_kernel"][1]
        dense(passes, on, (tokens, width, projected_width), bias="qkv_bias" in shapes, wide=True)
        query_heads = projected_width // (3 * head_width)
        key_heads = query_heads
        # On the way back the gradients of all three, each among zeros, are added up, and copied in the usual order.
        joined = [memory(on.numbers, tokens * projected_width, ARRAYS[name], name, backward=True) for name in JOINED]
        passes.add([], joined)
    else:
        query_heads, key_heads = shapes["q_kernel"][1] // head_width, shapes["k_kernel"][1] // head_width
        for name in ("q_kernel", "k_kernel", "v_kernel"):
            dense(passes, on, (tokens, width, shapes[name][1]), bias=False, wide=True)
        # The gradients of one input are added up.
        passes.add([], [memory(on.wide, tokens * width, ARRAYS["add"], "add", backward=True, count=2)])
        for count in (query_heads, key_heads):
            pointwise(passes, on.numbers, tokens * count * head_width, " ".join(ROTATION), *ROTATION_BACK)
    samples = max(1, tokens // length)
    if on.context > 1:
        _attend_to_gathered(passes, on, samples, (query_heads, key_heads), length, head_width)
    else:
        shape, causal = (samples, (query_heads, key_heads), (length, length), head_width), layer.causal
        passes.add(
            [attention(on.numbers, *shape, causal=causal)],
            [attention(on.numbers, *shape, causal=causal, backward=True)],
        )
    dense(passes, on, (tokens, query_heads * head_width, width), bias="out_bias" in shapes)


def _attend_to_gathered(
    passes: PassOperations, on: Pass, samples: int, heads: tuple[int, int], length: int, head_width: int
) -> None:
    """Attention of the rank that has the last stretch of each sequence, and so sees most keys of all ranks.

    Keys and values are stacked, gathered and put in order; their gradients are filled up with zeros and take the same
    way back.
    """
    shape = samples * on.context, heads, (length // on.context, length), head_width
    gathered = 2 * samples * on.context * length * heads[1] * head_width
    # Half of the last stretch's own keys are hidden from its queries.
    visible = 1 - 1 / (2 * on.context)
    forward, backward = (attention(on.numbers, *shape, causal=False, backward=back) for back in (False, True))
    copies = [memory(on.numbers, gathered / on.context, 2, "stack"), memory(on.numbers, gathered, 2, "cat")]
    back = [memory(on.numbers, gathered, ARRAYS[name], name, backward=True) for name in ("fill_", "copy_", "cat")]
    passes.add(copies, [*back, memory(on.numbers, gathered / on.context, 2, "stack", backward=True)])
    passes.add([replace(forward, flops=forward.flops * visible)], [replace(backward, flops=backward.flops * visible)])


def _gated(passes: PassOperations, on: Pass, tokens: int, width: int, hidden: int, *, wide: bool = True) -> None:
    dense(passes, on, (tokens, width, hidden), bias=False, wide=wide)
    pointwise(passes, on.numbers, tokens * hidden, "silu", "silu_backward")
    dense(passes, on, (tokens, width, hidden), bias=False, wide=wide)
    pointwise(passes, on.numbers, tokens * hidden, "mul", "mul", "mul")
    passes.add([], [memory(on.wide, tokens * width, ARRAYS["add"], "add", backward=True)])
    dense(passes, on, (tokens, hidden, width), bias=False)


def _experts(passes: PassOperations, layer: LayerFacts, on: Pass, tokens: int, width: int) -> None:
    """A router, and each expert with its share of the tokens; the host waits for the counts per expert."""
    count, hidden = dict(layer.arrays)["experts_gate"][0], dict(layer.arrays)["experts_gate"][-1]
    chosen = tokens * layer.chosen_experts
    share = max(1, chosen // max(1, count))
    dense(passes, on, (tokens, width, layer.experts), bias=False, wide=True)
    scores = memory("fp32", tokens * layer.experts, 2, count=ROUTING)
    passes.add(
        [scores, memory(on.numbers, chosen * width, ARRAYS["index"], "index", waits=True)],
        [memory("fp32", tokens * layer.experts, 2, backward=True, count=ROUTING_BACK),
         memory(on.numbers, chosen * width, 3, backward=True)],
    )  # fmt: skip
    expert = PassOperations([], [])
    _gated(expert, on, share, width, hidden, wide=False)
    each = expert.operations("")
    passes.add(
        [replace(operation, count=operation.count * count) for operation in each.forward],
        [replace(operation, count=operation.count * count) for operation in each.backward],
    )
    pointwise(passes, on.numbers, chosen * width, "cat mul", "mul", "mul", "cat")
    pointwise(passes, on.numbers, chosen * width, "add", "index")
