"""Rates of layers from timings, and what they make of a model."""

from dataclasses import replace

import pytest

from paceline.calibrate.fit import LayerTiming, ModelTiming, crowding_by_kind, fit_layers
from paceline.costs.footprint import ModelFacts
from paceline.costs.layers import LayerFacts
from paceline.predict.compute import Compute, model_digest, passes_back
from paceline.systems.files import load_hardware
from paceline.systems.hardware import Calibration


def dense(given: int, made: int) -> LayerFacts:
    return LayerFacts("dense", given * made + made, 2 * given * made, made, tensors=2,
                      arrays=(("kernel", (given, made)), ("bias", (made,))))  # fmt: skip


def seconds(layer: LayerFacts, given: int, batch: int, passes: int) -> float:
    """Layers that take exactly what the model of them can express."""
    flops, elements = 1e-11 * layer.forward_flops, 2e-9 * (given + layer.kept)
    return passes * (5e-5 + batch * (flops + elements) + 1e-9 * layer.parameters)


TIMINGS = [
    LayerTiming(dense(given, made), given, batch, first, seconds(dense(given, made), given, batch, 2 + (not first)))
    for given, made in ((784, 512), (512, 512), (64, 10), (2048, 256))
    for batch, first in ((8, False), (64, False), (256, True))
]


def test_rates_that_explain_the_timings_are_found_again() -> None:
    (rate,) = fit_layers("torch", TIMINGS)
    assert (rate.kind, rate.framework) == ("dense", "torch")
    assert rate.fixed == pytest.approx(5e-5, rel=1e-3)
    assert rate.per_flop == pytest.approx(1e-11, rel=1e-3)
    assert rate.per_element == pytest.approx(2e-9, rel=1e-3)
    assert rate.per_parameter == pytest.approx(1e-9, rel=1e-3)
    assert rate.residual < 1e-6


def test_a_model_of_measured_layers_takes_the_sum_of_them() -> None:
    layers = (dense(784, 512), dense(512, 10))
    known = Calibration(at="2020-01-01", machine="a machine", frameworks={}, layers=fit_layers("torch", TIMINGS))
    hardware = load_hardware("cpu-2-cores").model_copy(update={"calibration": known, "name": "local"})
    passes = Compute(hardware, "torch", "fp32").passes(ModelFacts(layers, 784), 32)
    # Nothing goes back to the input of the first layer.
    assert passes.total == pytest.approx(seconds(layers[0], 784, 32, 2) + seconds(layers[1], 512, 32, 3), rel=1e-3)
    assert passes.source == "layers, measured here"


MODELS = [ModelFacts((dense(given, width), dense(width, width), dense(width, 10)), given) for given, width in
          ((784, 64), (784, 512), (256, 1024))]  # fmt: skip


def in_a_model(model: ModelFacts, batch: int, per_parameter: float) -> float:
    """Both passes of all layers, each parameter taking so much longer than in a layer by itself."""
    given = (model.input_elements, *(layer.output_elements for layer in model.layers))
    passes = (2, *(3 for _ in model.layers[1:]))
    return sum(
        seconds(layer, before, batch, times) + times * per_parameter * layer.parameters
        for layer, before, times in zip(model.layers, given, passes, strict=False)
    )


def test_models_that_take_what_their_layers_take_change_nothing() -> None:
    models = [ModelTiming(model, 64, in_a_model(model, 64, 0.0)) for model in MODELS]
    (alone,), (rate,) = fit_layers("torch", TIMINGS), fit_layers("torch", TIMINGS, models)
    assert rate.per_parameter == pytest.approx(alone.per_parameter, rel=1e-3)
    assert rate.per_flop == pytest.approx(alone.per_flop, rel=1e-3)
    assert rate.timed_seconds == alone.timed_seconds


def test_what_weights_cost_within_models_is_learned_from_models() -> None:
    slower = 5e-10
    models = [ModelTiming(model, 64, in_a_model(model, 64, slower)) for model in MODELS]
    unseen = ModelFacts((dense(784, 768), dense(768, 10)), 784)
    errors = []
    for known in (fit_layers("torch", TIMINGS), fit_layers("torch", TIMINGS, models)):
        calibration = Calibration(at="2020-01-01", machine="a machine", frameworks={}, layers=known)
        hardware = load_hardware("cpu-2-cores").model_copy(update={"calibration": calibration, "name": "local"})
        errors.append(Compute(hardware, "torch", "fp32").passes(unseen, 32).total / in_a_model(unseen, 32, slower) - 1)
    assert errors[0] < -0.15
    assert abs(errors[1]) < 0.8 * abs(errors[0])


def test_nothing_goes_back_before_the_first_parameters() -> None:
    flat, first, pool, second = (LayerFacts("x", size, 10, 1) for size in (0, 5, 0, 5))
    assert passes_back(ModelFacts((flat, first, pool, second))) == [0, 1, 1, 2]


def test_models_of_the_same_sizes_are_the_same() -> None:
    one, two = ModelFacts((dense(4, 8),)), ModelFacts((dense(4, 9),))
    assert model_digest(one) == model_digest(ModelFacts((dense(4, 8),))) != model_digest(two)


def test_crowding_is_the_middle_ratio_of_each_kind_and_never_a_gain() -> None:
    slower = [
        replace(one, seconds=one.seconds * factor) for one, factor in zip(TIMINGS, [1.2, 1.5, 9.0] * 4, strict=True)
    ]
    assert crowding_by_kind(TIMINGS, slower) == {"dense": pytest.approx(1.5)}
    assert crowding_by_kind(slower, TIMINGS) == {"dense": 1.0}
