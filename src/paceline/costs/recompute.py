"""What stays of a batch for the backward pass, and what is computed again, where a run recomputes activations."""

from dataclasses import replace

from paceline.costs.footprint import ModelFacts
from paceline.costs.layers import LayerFacts
from paceline.costs.precision import Numbers, autocast_copies, kept_bytes
from paceline.spec import Recompute, RunSpec


def recomputed_model(model: ModelFacts, recompute: Recompute, ways: int = 1) -> ModelFacts:
    """The model with blocks that keep less: only their output, or also what products and transfers gave.

    `ways` is over how many ranks each layer is split already.
    """
    if recompute == "none":
        return model
    return ModelFacts(tuple(_recomputed(layer, recompute, ways) for layer in model.layers), model.input_elements)


def _recomputed(layer: LayerFacts, recompute: Recompute, ways: int) -> LayerFacts:
    if layer.heads is None:
        return layer
    output = layer.output_elements // ways
    if recompute == "full":
        return replace(layer, kept_elements=output, single_elements=0, summed_elements=output)
    # Of the rank's columns; the attention's sums stay in single precision.
    split = layer.product_elements // ways
    quotients = layer.attention_sums // ways
    # Both products that are added; of split layers both sums, before and after they are scattered, and both inputs
    # that were gathered. Of experts neither is, as each takes vectors of the rank's own positions.
    gathered = 2 if layer.experts else 4
    beside = 2 * layer.output_elements if ways == 1 else 2 * output + gathered * layer.output_elements
    return replace(layer, kept_elements=output + split + beside, single_elements=quotients, summed_elements=output)


def activation_bytes(
    model: ModelFacts,
    recompute: Recompute,
    samples: float,
    ways: int = 1,
    numbers: Numbers = "single",
    passes: float = 1,
) -> float:
    """Bytes kept of a batch, plus those of the block that is being recomputed in the backward pass.

    Where the samples are those of several passes, one pass goes back at a time.
    """

    def parts() -> tuple[int, int, float]:
        kept = recomputed_model(model, recompute, ways).kept_bytes(numbers)
        return kept, most_again(model, recompute, numbers, ways), autocast_copies(model.layers, numbers)

    kept, again, copies = model.derive(("activations", recompute, ways, numbers), parts)
    return float((kept + again / passes) * samples + copies)


def most_again(model: ModelFacts, recompute: Recompute, numbers: Numbers, ways: int = 1) -> int:
    """Bytes per sample, beyond what it keeps, of the largest block while it is recomputed."""
    pairs = zip(model.layers, recomputed_model(model, recompute, ways).layers, strict=True)
    return max((0, *(kept_bytes(before, numbers) - kept_bytes(after, numbers) for before, after in pairs)))


def step_flops(model: ModelFacts, recompute: Recompute, samples: float) -> float:
    """Operations of both passes of a batch; with full recomputation, blocks run forward twice."""
    again = sum(layer.forward_flops * count for layer, count in model.runs if layer.heads) * (recompute == "full")
    return (model.forward_flops + model.backward_flops + again) * samples


def recomputes_around(spec: RunSpec, ways: int) -> bool:
    """Whether compiled blocks are computed again from outside, all of them, rather than within what is compiled.

    On a CPU, PyTorch 2.13 cannot put what attention has of random numbers beside the mesh of devices that layers are
    split over (`ways`) among what a compiled forward pass leaves; on GPUs it puts it elsewhere.
    """
    return ways > 1 and spec.execution == "compiled" and spec.recompute == "full" and spec.device == "cpu"
