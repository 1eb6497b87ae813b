"""The most that a step holds at one time: a backward pass frees what it has used while it fills gradients.

Libraries take more beside the tensors, for a moment: a convolution copies its weights and results into another order.
That is measured of single layers, by kind. What allocators keep beyond is measured of whole runs.
"""

from collections.abc import Mapping

from paceline.costs.footprint import FLOAT_BYTES, ModelFacts
from paceline.systems.hardware import Curve, LayerScratch

# What a loss holds beside the results of the last layer: as many numbers as probabilities, and as a gradient.
LOSS_ARRAYS = 2


def beyond_kept(model: ModelFacts, samples: float, scratch: Mapping[str, LayerScratch]) -> float:
    """Bytes of the peak of both passes minus all gradients and kept activations; may be negative."""
    return peak_of_passes(model, samples, scratch) - all_kept(model, samples)


def all_kept(model: ModelFacts, samples: float) -> float:
    """Bytes of every gradient and of everything that stays for the backward pass."""
    return model.parameter_bytes + model.activation_bytes * samples


def peak_of_passes(model: ModelFacts, samples: float, scratch: Mapping[str, LayerScratch]) -> float:
    """Bytes beside parameters, optimizer state and data, at the worst moment of both passes."""
    batch_bytes = samples * FLOAT_BYTES
    peak = (model.activation_bytes + LOSS_ARRAYS * model.layers[-1].output_elements * FLOAT_BYTES) * samples
    kept_below, input_elements = model.input_elements * batch_bytes, model.input_elements
    gradients = model.parameter_bytes
    for layer in model.layers:
        # Its output was freed by the layer above; the gradient from there is there instead, and that of its input
        # where something below is trained.
        trained_below = gradients < model.parameter_bytes
        elements = max(0, layer.kept - layer.output_elements) + layer.output_elements
        elements += input_elements if trained_below else 0
        rates = scratch.get(layer.kind)
        taken = 0.0
        if rates:
            taken = rates.per_weight_byte * layer.parameters * FLOAT_BYTES
            taken += rates.per_activation_byte * (input_elements + layer.kept) * batch_bytes
        # Gradients are there from the last layer down to this one; below the first that is trained no pass goes.
        if trained_below or layer.parameters:
            peak = max(peak, kept_below + elements * batch_bytes + gradients + taken)
        kept_below += layer.kept * batch_bytes
        gradients -= layer.parameters * FLOAT_BYTES
        input_elements = layer.output_elements
    return peak


def kept_by_allocator(points: Curve, samples: float) -> float:
    """Bytes over the local batch; beyond the largest that was measured the line goes on, not that point's chance."""
    if samples <= max(points.sizes):
        return points.at(samples)
    return max(points.values[-1], points.fixed + points.slope * samples)
