"""What stays of a batch for the backward pass, and what is computed again, where a run recomputes activations."""

from dataclasses import replace

from paceline.costs.footprint import BACKWARD_OVER_FORWARD, FLOAT_BYTES, ModelFacts
from paceline.costs.layers import LayerFacts
from paceline.spec import Recompute


def recomputed_model(model: ModelFacts, recompute: Recompute, ways: int = 1) -> ModelFacts:
    """The model whose transformer blocks keep less: their output alone, or what products and transfers made too.

    `ways` is over how many ranks each layer is split already.
    """
    if recompute == "none":
        return model
    layers = tuple(replace(layer, kept_elements=_kept(layer, recompute, ways)) for layer in model.layers)
    return ModelFacts(layers, model.input_elements)


def _kept(layer: LayerFacts, recompute: Recompute, ways: int) -> int:
    if layer.heads is None:
        return layer.kept
    output = layer.output_elements // ways
    if recompute == "full":
        return output
    shapes = dict(layer.arrays)
    length = layer.output_elements // shapes["norm1_scale"][0]
    # Of the rank's columns: queries, keys, values and the first dense layer; their quotients by head; the attention.
    split = length * (shapes["qkv_bias"][0] * 4 // 3 + shapes["up_bias"][0] + layer.heads // ways)
    if ways == 1:
        return output + split + 2 * layer.output_elements
    # Both sums, before and after they are scattered, and both inputs that were gathered.
    return 3 * output + split + 4 * layer.output_elements


def activation_bytes(model: ModelFacts, recompute: Recompute, samples: float, ways: int = 1) -> float:
    """Of a batch: what is kept, and what the block that is computed again just now has beside it."""
    kept = recomputed_model(model, recompute, ways)
    again = max((before.kept - after.kept for before, after in zip(model.layers, kept.layers, strict=True)), default=0)
    return (kept.activation_bytes + max(0, again) * FLOAT_BYTES) * samples


def step_flops(model: ModelFacts, recompute: Recompute, samples: float) -> float:
    """Forward and backward of a batch, with the blocks' forward once more where all of it is computed again."""
    again = sum(layer.forward_flops for layer in model.layers if layer.heads) if recompute == "full" else 0
    return (model.forward_flops * (1 + BACKWARD_OVER_FORWARD) + again) * samples
