"""The most that a step holds at one time: a backward pass frees what it has used while it fills gradients.

Libraries take more beside the tensors, for a moment: a convolution copies its weights and results into another order.
That is measured of single layers, by kind. What allocators keep beyond is measured of whole runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.costs.footprint import FLOAT_BYTES, ModelFacts
from paceline.costs.layers import LayerFacts
from paceline.predict.compute import model_digest
from paceline.systems.hardware import Curve, LayerScratch, MemoryFit

# What a loss holds beside the results of the last layer: as many numbers as probabilities, and as a gradient.
LOSS_ARRAYS = 2


@dataclass(frozen=True)
class MeasuredScratch:
    """One layer's passes: what they held at most, its gradient from above aside."""

    layer: LayerFacts
    input_elements: int
    batch: int
    first: bool
    peak_bytes: float

    @property
    def weight_bytes(self) -> float:
        """Of its parameters."""
        return self.layer.parameters * FLOAT_BYTES

    @property
    def activation_bytes(self) -> float:
        """What it is given and what it keeps."""
        return (self.input_elements + self.layer.kept) * self.batch * FLOAT_BYTES

    @property
    def beyond_tensors(self) -> float:
        """Gradients of its weights and of its input, and what it keeps, are no scratch."""
        given = 0 if self.first else self.input_elements
        return self.peak_bytes - self.weight_bytes - (given + self.layer.kept) * self.batch * FLOAT_BYTES


def fit_scratch(framework: str, measured: Sequence[MeasuredScratch]) -> list[LayerScratch]:
    """For each kind of layer, as a share of its weights and of its activations."""
    import numpy as np
    from scipy.optimize import nnls

    kinds: dict[str, list[MeasuredScratch]] = {}
    for one in measured:
        kinds.setdefault(one.layer.kind, []).append(one)
    found = []
    for kind, own in kinds.items():
        # An error counts as a share of all that the layer held.
        scale = np.array([max(1.0, one.peak_bytes) for one in own])
        features = np.array([[one.weight_bytes, one.activation_bytes] for one in own])
        shares, _ = nnls(features / scale[:, None], np.array([max(0.0, one.beyond_tensors) for one in own]) / scale)
        weights, activations = (float(share) for share in shares)
        found.append(
            LayerScratch(framework=framework, kind=kind, per_weight_byte=weights, per_activation_byte=activations)
        )
    return found


def beyond_kept(model: ModelFacts, samples: float, scratch: Mapping[str, LayerScratch]) -> float:
    """The peak of both passes over all gradients and all that is kept, in bytes; below none where they never meet."""
    return _peak(model, samples, scratch) - all_kept(model, samples)


def all_kept(model: ModelFacts, samples: float) -> float:
    """Every gradient and everything that stays for the backward pass."""
    return model.parameter_bytes + model.activation_bytes * samples


def _peak(model: ModelFacts, samples: float, scratch: Mapping[str, LayerScratch]) -> float:
    """Bytes beside parameters, optimizer state and data, at the worst moment of both passes."""
    each = samples * FLOAT_BYTES
    most = (model.activation_bytes + LOSS_ARRAYS * model.layers[-1].output_elements * FLOAT_BYTES) * samples
    below, given, above = model.input_elements * each, model.input_elements, model.parameter_bytes
    for layer in model.layers:
        # Its output was freed by the layer above; the gradient from there is there instead, and that of its input
        # where something below is trained.
        trained_below = above < model.parameter_bytes
        own = max(0, layer.kept - layer.output_elements) + layer.output_elements + (given if trained_below else 0)
        known = scratch.get(layer.kind)
        taken = 0.0
        if known:
            taken = known.per_weight_byte * layer.parameters * FLOAT_BYTES
            taken += known.per_activation_byte * (given + layer.kept) * each
        # Gradients are there from the last layer down to this one; below the first that is trained no pass goes.
        if trained_below or layer.parameters:
            most = max(most, below + own * each + above + taken)
        below += layer.kept * each
        above -= layer.parameters * FLOAT_BYTES
        given = layer.output_elements
    return most


@dataclass(frozen=True)
class MeasuredPeak:
    """One worker's run: what it held beyond its framework, and how much of that its tensors and data are."""

    model: ModelFacts
    batch: float
    peak_bytes: float
    held_bytes: float


def fit_memory(framework: str, runs: Sequence[MeasuredPeak], scratch: Sequence[LayerScratch] = ()) -> MemoryFit:
    """A base, and a share of what the passes take; the first model's points are kept."""
    import numpy as np
    from scipy.optimize import nnls

    known = {one.kind: one for one in scratch}
    model = runs[0].model
    # What an allocator keeps is chance: of runs that repeat one the middle one counts.
    usual = [sorted(same, key=lambda run: run.peak_bytes)[len(same) // 2] for same in _repeats(runs)]
    left = [max(1.0, run.peak_bytes - run.held_bytes - beyond_kept(run.model, run.batch, known)) for run in usual]
    # An error counts as a share of the peak.
    scale = np.array([run.peak_bytes for run in usual])
    features = np.array([[1.0, _peak(run.model, run.batch, known)] for run in usual])
    (base, slack), _ = nnls(features / scale[:, None], np.array(left) / scale)
    errors = (features @ np.array([base, slack]) - np.array(left)) / scale
    own = {run.batch: one for run, one in zip(usual, left, strict=True) if run.model == model}
    return MemoryFit(
        framework=framework, base_bytes=float(base), slack=float(slack), residual=float(np.sqrt(np.mean(errors**2))),
        digest=model_digest(model), points=Curve.through(list(own), list(own.values())), scratch=tuple(scratch),
    )  # fmt: skip


def _repeats(runs: Sequence[MeasuredPeak]) -> list[list[MeasuredPeak]]:
    """Those of one model and batch together."""
    found: dict[tuple[str, float], list[MeasuredPeak]] = {}
    for run in runs:
        found.setdefault((model_digest(run.model), run.batch), []).append(run)
    return list(found.values())


def kept_by_allocator(points: Curve, samples: float) -> float:
    """Beyond the largest batch that was measured the line goes on, not that point's chance."""
    if samples <= max(points.sizes):
        return points.at(samples)
    return max(points.values[-1], points.fixed + points.slope * samples)
