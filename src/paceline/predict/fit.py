"""Timings of single layers ─► seconds by kind: the non-negative line with the least relative errors."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import median

import numpy as np

from paceline.footprint import LayerFacts
from paceline.predict.compute import layer_kind, touched_elements
from paceline.systems.hardware import LayerRate

# Orders of magnitude of what is fitted, so that rounding does not decide: a pass, an operation, a number, a parameter.
SCALES = np.array([1e-5, 1e-11, 1e-9, 1e-9])


@dataclass(frozen=True)
class LayerTiming:
    """A layer's forward and backward pass of a batch; `first` if nothing before it is trained."""

    layer: LayerFacts
    input_elements: int
    batch: int
    first: bool
    seconds: float

    @property
    def passes(self) -> int:
        """One forward, one back for its weights if it has any, one for its input if that is wanted."""
        return 1 + (self.layer.parameters > 0) + (not self.first)

    @property
    def features(self) -> list[float]:
        """What its seconds are explained by."""
        elements = touched_elements(self.layer, self.input_elements)
        each = [1.0, self.batch * self.layer.forward_flops, self.batch * elements, self.layer.parameters]
        return [self.passes * one for one in each]


def fit_layers(framework: str, timings: Sequence[LayerTiming]) -> list[LayerRate]:
    """One rate for each kind of layer that was timed."""
    kinds: dict[str, list[LayerTiming]] = {}
    for timing in timings:
        kinds.setdefault(layer_kind(timing.layer), []).append(timing)
    return [_fit(framework, kind, own) for kind, own in kinds.items()]


def _fit(framework: str, kind: str, timings: Sequence[LayerTiming]) -> LayerRate:
    from scipy.optimize import nnls

    seconds = np.array([timing.seconds for timing in timings])
    features = np.array([timing.features for timing in timings]) * SCALES
    found, _ = nnls(features / seconds[:, None], np.ones(len(seconds)))
    errors = features @ found / seconds - 1
    fixed, per_flop, per_element, per_parameter = (float(value) for value in found * SCALES)
    return LayerRate(
        framework=framework, kind=kind, fixed=fixed, per_flop=per_flop, per_element=per_element,
        per_parameter=per_parameter, residual=sqrt(float(np.mean(errors**2))),
        timed_seconds=float(seconds.sum()),
    )  # fmt: skip


def crowding_by_kind(alone: Sequence[LayerTiming], together: Sequence[LayerTiming]) -> dict[str, float]:
    """How much longer layers of each kind take when other cores compute the same: the middle one of each kind."""
    ratios: dict[str, list[float]] = {}
    known = {(one.layer, one.batch): one.seconds for one in alone}
    for one in together:
        ratios.setdefault(layer_kind(one.layer), []).append(one.seconds / known[one.layer, one.batch])
    return {kind: max(1.0, median(own)) for kind, own in ratios.items()}
