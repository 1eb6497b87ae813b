"""Timings of layers, alone and within models ─► seconds by kind: non-negative costs with the least relative errors."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from paceline.costs.footprint import ModelFacts
from paceline.costs.layers import LayerFacts
from paceline.predict.compute import passes_back, takes_time, touched_elements
from paceline.systems.hardware import LayerRate

# Orders of magnitude of what is fitted, so that rounding does not decide: a pass, an operation, a number, a parameter.
SCALES = np.array([1e-5, 1e-11, 1e-9, 1e-9])

# What seconds are explained by, for each kind of layer: so many of what is fitted.
Amounts = dict[str, "np.ndarray[Any, Any]"]


@dataclass(frozen=True)
class LayerTiming:
    """A layer's forward and backward pass of a batch; `first` if nothing before it is trained."""

    layer: LayerFacts
    input_elements: int
    batch: int
    first: bool
    seconds: float

    @property
    def kind(self) -> str:
        """The layer's kind."""
        return self.layer.kind

    @property
    def amounts(self) -> Amounts:
        """How much of each cost the passes have: forward, backward for weights, backward for the input."""
        passes = 1 + (self.layer.parameters > 0) + (not self.first)
        return {self.kind: _amounts(self.layer, self.input_elements, self.batch, passes)}


@dataclass(frozen=True)
class ModelTiming:
    """Time of both passes of a whole model, in which weights are not cached as they are for a single layer."""

    model: ModelFacts
    batch: float
    seconds: float

    @property
    def amounts(self) -> Amounts:
        """The summed amounts of all layers."""
        amounts: Amounts = {}
        input_elements = self.model.input_elements
        for layer, back in zip(self.model.layers, passes_back(self.model), strict=True):
            if takes_time(layer):
                kind = layer.kind
                amounts[kind] = amounts.get(kind, 0.0) + _amounts(layer, input_elements, self.batch, 1 + back)
            input_elements = layer.output_elements
        return amounts


def _amounts(layer: LayerFacts, input_elements: int, batch: float, passes: int) -> "np.ndarray[Any, Any]":
    elements = touched_elements(layer, input_elements)
    return passes * SCALES * [1.0, batch * layer.forward_flops, batch * elements, layer.parameters]


def fit_layers(
    framework: str, timings: Sequence[LayerTiming], models: Sequence[ModelTiming] = ()
) -> tuple[LayerRate, ...]:
    """Fits one rate for each kind of layer; all models together weigh as much as all single layers."""
    from scipy.optimize import nnls

    kinds = tuple(dict.fromkeys(timing.kind for timing in timings))
    none = np.zeros(len(SCALES))
    rows: list[LayerTiming | ModelTiming] = [*timings, *models]
    seconds = np.array([row.seconds for row in rows])
    amounts = np.array([np.concatenate([row.amounts.get(kind, none) for kind in kinds]) for row in rows])
    weights = np.array([1.0] * len(timings) + [len(timings) / max(1, len(models))] * len(models))
    roots = np.sqrt(weights)
    solution, _ = nnls(amounts * (roots / seconds)[:, None], roots)
    squares = (amounts @ solution / seconds - 1) ** 2 * weights
    rates = []
    for kind, costs in zip(kinds, solution.reshape(len(kinds), len(SCALES)) * SCALES, strict=True):
        of_kind = np.array([kind in row.amounts for row in rows])
        fixed, per_flop, per_element, per_parameter = (float(cost) for cost in costs)
        rates.append(LayerRate(
            framework=framework, kind=kind, fixed=fixed, per_flop=per_flop, per_element=per_element,
            per_parameter=per_parameter, residual=float(np.sqrt(squares[of_kind].sum() / weights[of_kind].sum())),
            timed_seconds=sum(timing.seconds for timing in timings if timing.kind == kind),
        ))  # fmt: skip
    return tuple(rates)


def crowding_by_kind(alone: Sequence[LayerTiming], together: Sequence[LayerTiming]) -> dict[str, float]:
    """The median slowdown of each kind of layer when all cores compute it at once."""
    ratios: dict[str, list[float]] = {}
    alone_seconds = {(timing.layer, timing.batch): timing.seconds for timing in alone}
    for timing in together:
        ratios.setdefault(timing.kind, []).append(timing.seconds / alone_seconds[timing.layer, timing.batch])
    return {kind: max(1.0, median(factors)) for kind, factors in ratios.items()}
