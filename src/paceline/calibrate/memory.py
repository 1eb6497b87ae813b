"""What layers and runs held ─► what libraries take for a moment, and what allocators keep beyond the tensors."""

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.costs.footprint import FLOAT_BYTES, ModelFacts
from paceline.costs.layers import LayerFacts
from paceline.predict.compute import model_digest
from paceline.predict.memory import beyond_kept, peak_of_passes
from paceline.systems.hardware import Curve, LayerScratch, MemoryFit


@dataclass(frozen=True)
class MeasuredScratch:
    """The most that both passes of one layer held, the gradient from the layer above aside."""

    layer: LayerFacts
    input_elements: int
    batch: int
    # Whether nothing below it is trained, so that its input needs no gradient.
    first: bool
    peak_bytes: float

    @property
    def weight_bytes(self) -> float:
        """Bytes of its parameters."""
        return self.layer.parameters * FLOAT_BYTES

    @property
    def activation_bytes(self) -> float:
        """Bytes of its input and of what it keeps."""
        return (self.input_elements + self.layer.kept) * self.batch * FLOAT_BYTES

    @property
    def beyond_tensors(self) -> float:
        """The peak without the gradients of its weights and of its input, and without what it keeps."""
        input_gradient = 0 if self.first else self.input_elements
        return self.peak_bytes - self.weight_bytes - (input_gradient + self.layer.kept) * self.batch * FLOAT_BYTES


def fit_scratch(framework: str, measured: Sequence[MeasuredScratch]) -> list[LayerScratch]:
    """For each kind of layer, as a share of its weights and of its activations."""
    import numpy as np
    from scipy.optimize import nnls

    kinds: dict[str, list[MeasuredScratch]] = {}
    for scratch in measured:
        kinds.setdefault(scratch.layer.kind, []).append(scratch)
    fits = []
    for kind, rows in kinds.items():
        # An error counts as a share of all that the layer held.
        scale = np.array([max(1.0, row.peak_bytes) for row in rows])
        features = np.array([[row.weight_bytes, row.activation_bytes] for row in rows])
        shares, _ = nnls(features / scale[:, None], np.array([max(0.0, row.beyond_tensors) for row in rows]) / scale)
        weights, activations = (float(share) for share in shares)
        fits.append(
            LayerScratch(framework=framework, kind=kind, per_weight_byte=weights, per_activation_byte=activations)
        )
    return fits


@dataclass(frozen=True)
class MeasuredPeak:
    """One worker's run: what it held beyond its framework, and how much of that its tensors and data are."""

    model: ModelFacts
    batch: float
    peak_bytes: float
    held_bytes: float


def fit_memory(framework: str, runs: Sequence[MeasuredPeak], scratch: Sequence[LayerScratch] = ()) -> MemoryFit:
    """A base, and a share of what the passes take; the points of the first model are kept beside."""
    import numpy as np
    from scipy.optimize import nnls

    by_kind = {rates.kind: rates for rates in scratch}
    model = runs[0].model
    # What an allocator keeps is chance: of repeated runs the middle one counts.
    usual = [sorted(same, key=lambda run: run.peak_bytes)[len(same) // 2] for same in _repeats(runs)]
    left = [max(1.0, run.peak_bytes - run.held_bytes - beyond_kept(run.model, run.batch, by_kind)) for run in usual]
    # An error counts as a share of the peak.
    scale = np.array([run.peak_bytes for run in usual])
    features = np.array([[1.0, peak_of_passes(run.model, run.batch, by_kind)] for run in usual])
    (base, slack), _ = nnls(features / scale[:, None], np.array(left) / scale)
    errors = (features @ np.array([base, slack]) - np.array(left)) / scale
    points = {run.batch: left_bytes for run, left_bytes in zip(usual, left, strict=True) if run.model == model}
    return MemoryFit(
        framework=framework, base_bytes=float(base), slack=float(slack), residual=float(np.sqrt(np.mean(errors**2))),
        digest=model_digest(model), points=Curve.through(list(points), list(points.values())), scratch=tuple(scratch),
    )  # fmt: skip


def _repeats(runs: Sequence[MeasuredPeak]) -> list[list[MeasuredPeak]]:
    """Runs of the same model and batch together."""
    groups: dict[tuple[str, float], list[MeasuredPeak]] = {}
    for run in runs:
        groups.setdefault((model_digest(run.model), run.batch), []).append(run)
    return list(groups.values())
