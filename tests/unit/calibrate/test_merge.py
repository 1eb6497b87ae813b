"""Two calibrations of one machine become one: the less disturbed of each measurement."""

from math import log

import pytest

from paceline.calibrate.merge import merge_calibrations, merge_systems
from paceline.systems.files import load_hardware
from paceline.systems.hardware import (
    Calibration,
    Collective,
    Curve,
    Hardware,
    LayerScratch,
    MemoryFit,
    Quantity,
    StepCurve,
    StrategyOverhead,
)
from paceline.systems.operation_times import OperationTimes


def calibration(factor: float, model: str = "small", machine: str = "a machine", **fields: object) -> Calibration:
    curve = Curve.through([1.0, 2.0, 4.0], [1.0 * factor, 2.0, 4.0 * factor])
    values = {
        "at": "2020-01-01", "machine": machine, "frameworks": {"torch": "2"},
        "steps": (StepCurve(framework="torch", model=model, digest=model, precision="fp32", seconds=curve),),
        "operations": (OperationTimes(kind="update", numbers="fp32", name="adam", shapes=((8,), (9,)), flops=(8, 9),
                                      moved_bytes=(8, 9), seconds=(factor, 2)),),
        "collectives": (Collective(transport="gloo", kind="send", ranks=2, curve=curve),),
        "overheads": (StrategyOverhead(strategy="torch-ddp", seconds_per_message=factor, held_bytes=1),),
        "repeat_deviation": factor / 10, "operation_crowding": {"2": {"product": factor}},
        **fields,
    }  # fmt: skip
    return Calibration.model_validate(values)


def test_the_smaller_of_each_measurement_is_kept() -> None:
    for pair in ((1.0, 3.0), (3.0, 1.0)):
        found = merge_calibrations(*(calibration(factor) for factor in pair))
        assert found.steps[0].seconds.values == (1.0, 2.0, 4.0)
        assert found.collectives[0].curve.values == (1.0, 2.0, 4.0)
        assert found.operations[0].seconds == (1.0, 2.0)
        # A difference errs either way.
        assert found.overheads[0].seconds_per_message == 2.0
        assert found.operation_crowding == {"2": {"product": 2.0}}
        # Two of the three steps are three times as long in one: beside 0.1 and 0.3, which the repeats say.
        assert found.repeat_deviation == pytest.approx(((0.1**2 + 0.3**2 + (log(3) / 0.954) ** 2) / 3) ** 0.5)


def test_waiting_that_other_programs_hid_does_not_count() -> None:
    def waited(*seconds: float) -> float:
        found = merge_calibrations(
            *(
                calibration(1.0, overheads=(StrategyOverhead(strategy="torch-ddp", seconds_per_message=1, held_bytes=1,
                                                             waiting_per_message=one),))
                for one in seconds
            )
        )  # fmt: skip
        return found.overheads[0].waiting_per_message

    assert waited(0.0, 4.0) == waited(4.0, 0.0) == 4.0
    assert waited(2.0, 4.0) == 3.0
    assert waited(0.0, 0.0) == 0.0


def test_models_that_only_one_of_them_measured_are_kept() -> None:
    found = merge_calibrations(calibration(1.0, "small"), calibration(1.0, "large"))
    assert [curve.model for curve in found.steps] == ["small", "large"]


def test_other_versions_keep_only_what_they_do_not_measure_themselves() -> None:
    found = merge_calibrations(calibration(1.0, frameworks={"torch": "1"}), calibration(3.0))
    assert found.steps[0].seconds.values == (3.0, 2.0, 12.0)
    assert found.operations[0].seconds == (3.0, 2.0)


def test_another_machine_has_no_say() -> None:
    assert merge_calibrations(calibration(1.0, "other", machine="another"), calibration(3.0)) == calibration(3.0)


def test_of_ratios_between_measurements_the_middle_counts() -> None:
    def measured(ratio: float, **fields: object) -> Hardware:
        made = calibration(1.0, crowding={"2": ratio}, **fields)
        quantity = Quantity(value=ratio, source="measured")
        update = {"calibration": made, "interference": quantity, "straggling": quantity}
        return load_hardware("cpu-2-cores").model_copy(update=update)

    found = merge_systems(measured(1.0), measured(1.5))
    assert found.calibration is not None
    assert found.calibration.crowding == {"2": 1.25}
    assert found.interference.value == found.straggling.value == 1.25
    other = merge_systems(measured(1.0, machine="another"), measured(1.5))
    assert other.interference.value == other.straggling.value == 1.5


def memory(factor: float, digest: str = "small") -> MemoryFit:
    return MemoryFit(
        framework="torch", base_bytes=factor, slack=factor, residual=factor / 10, digest=digest,
        points=Curve.through([16.0, 64.0], [factor, 4 * factor]),
        scratch=(LayerScratch(framework="torch", kind="dense", per_weight_byte=factor, per_activation_byte=0.0),),
    )  # fmt: skip


def test_of_what_allocators_keep_the_middle_counts_and_of_another_model_the_new() -> None:
    def joined(old: MemoryFit, new: MemoryFit) -> MemoryFit:
        return merge_calibrations(calibration(1.0, memory=(old,)), calibration(1.0, memory=(new,))).memory[0]

    assert joined(memory(1.0), memory(3.0)) == memory(2.0)
    assert joined(memory(1.0), memory(3.0, "large")) == memory(3.0, "large")


def test_what_strategies_hold_of_models_is_kept_of_all_of_them() -> None:
    def measured(**held: float) -> Calibration:
        one = StrategyOverhead(strategy="torch-ddp", seconds_per_message=1, held_bytes=1, held_per_activation_byte=held)
        return calibration(1.0, overheads=(one,))

    found = merge_calibrations(measured(small=2.0, other=5.0), measured(small=4.0, large=7.0))
    assert found.overheads[0].held_per_activation_byte == {"small": 3.0, "other": 5.0, "large": 7.0}
