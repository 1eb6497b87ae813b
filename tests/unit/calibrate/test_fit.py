"""Operations as they were timed, as they take within models, and what they make of a model."""

import pytest

from paceline.calibrate.core_cases import core_cases
from paceline.calibrate.fit import ModelTiming, crowding_by_kind, with_operations, within_models
from paceline.calibrate.gpu.messages import TimedOperation
from paceline.costs.footprint import ModelFacts
from paceline.costs.layer_operations import model_operations
from paceline.costs.layers import LayerFacts
from paceline.costs.operations import Operation
from paceline.predict.compute import Compute, model_digest
from paceline.predict.steps import BESIDE
from paceline.spec import Optimizer
from paceline.systems.files import load_hardware
from paceline.systems.hardware import NOT_CALIBRATED, Hardware

SOURCE = "made up for a test"


def dense(given: int, made: int) -> LayerFacts:
    return LayerFacts("dense", given * made + made, 2 * given * made, made, tensors=2,
                      arrays=(("kernel", (given, made)), ("bias", (made,))))  # fmt: skip


def alone(operation: Operation) -> float:
    """Seconds of an operation by itself on a made-up core."""
    return 2e-6 + 1e-11 * operation.flops + 5e-11 * operation.moved_bytes


TIMED = [TimedOperation(operation=case, seconds=alone(case)) for case in core_cases()]
MODELS = [ModelFacts((dense(given, width), dense(width, width), dense(width, 10)), given) for given, width in
          ((784, 16), (784, 512), (256, 1024))]  # fmt: skip


def timed_core() -> Hardware:
    hardware = load_hardware("cpu-2-cores").model_copy(update={"name": "local", "calibration": NOT_CALIBRATED})
    return with_operations(hardware, TIMED, SOURCE)


def all_operations(model: ModelFacts, batch: int) -> list[Operation]:
    step = model_operations(model, batch, "fp32", Optimizer())
    return [*step.update, *(one for layer in step.layers for one in (*layer.forward, *layer.backward))]


def in_a_model(model: ModelFacts, batch: int, factor: float, asking: float) -> float:
    """A step whose operations take so many times as long as by themselves, and so long to ask for."""
    operations = all_operations(model, batch)
    return factor * sum(map(alone, operations)) + asking * (BESIDE + len(operations))


def predicted(hardware: Hardware, model: ModelFacts, batch: int) -> float:
    passes = Compute(hardware, "torch", "fp32").passes(model, batch)
    assert passes.source == "a grid of operations, measured here"
    return passes.total + passes.overhead + passes.update_per_parameter * model.parameters


def test_what_operations_take_within_models_is_learned_from_models() -> None:
    models = [ModelTiming(model, 64, in_a_model(model, 64, 1.3, 2e-5)) for model in MODELS]
    fitted = within_models(timed_core(), models, SOURCE)
    assert fitted.device.host_seconds_per_operation["eager"].value == pytest.approx(2e-5, rel=0.15)
    unseen = ModelFacts((dense(784, 700), dense(700, 300), dense(300, 10)), 784)
    assert predicted(fitted, unseen, 48) == pytest.approx(in_a_model(unseen, 48, 1.3, 2e-5), rel=0.06)


def test_a_core_is_no_slower_than_what_it_is_asked_for() -> None:
    """Cores ask themselves, so that asking is part of each operation and never hidden behind it."""
    models = [ModelTiming(model, 64, in_a_model(model, 64, 1.0, 5e-4)) for model in MODELS]
    fitted = within_models(timed_core(), models, SOURCE)
    tiny = ModelFacts((dense(4, 4), dense(4, 4)), 4)
    assert predicted(fitted, tiny, 2) > 5e-4 * len(all_operations(tiny, 2))


def test_models_of_the_same_sizes_are_the_same() -> None:
    one, two = ModelFacts((dense(4, 8),)), ModelFacts((dense(4, 9),))
    assert model_digest(one) == model_digest(ModelFacts((dense(4, 8),))) != model_digest(two)


def test_crowding_is_the_middle_ratio_of_each_kind_and_never_a_gain() -> None:
    products = [row for row in TIMED if row.operation.kind == "product"][:12]
    slower = [
        row.model_copy(update={"seconds": row.seconds * factor})
        for row, factor in zip(products, [1.2, 1.5, 9.0] * 4, strict=True)
    ]
    assert crowding_by_kind(products, slower) == {"product": pytest.approx(1.5)}
    assert crowding_by_kind(slower, products) == {"product": 1.0}


def test_a_model_is_crowded_as_its_operations_are() -> None:
    hardware = timed_core()
    known = hardware.calibrated.model_copy(update={"operation_crowding": {"2": {"product": 1.5, "memory": 1.5}}})
    crowded = Compute(hardware.model_copy(update={"calibration": known}), "torch", "fp32")
    assert crowded.all_cores_factor(MODELS[1]) == pytest.approx(1.5)
    assert Compute(hardware, "torch", "fp32").all_cores_factor(MODELS[1]) == 1.0


def test_without_timed_operations_the_data_sheet_counts_and_says_so() -> None:
    hardware = load_hardware("cpu-2-cores").model_copy(update={"name": "local", "calibration": NOT_CALIBRATED})
    passes = Compute(hardware, "torch", "fp32").passes(MODELS[1], 64)
    assert passes.source == "the data sheet, because no operations were timed: run paceline calibrate"
    assert passes.deviation == pytest.approx(hardware.uncertainty.value)
    assert in_a_model(MODELS[1], 64, 0.1, 0.0) < passes.total < in_a_model(MODELS[1], 64, 10.0, 0.0)
