"""Seconds of operations: as they were timed, by a grid, by the data sheet, in this order."""

from dataclasses import replace
from itertools import product as crossed
from math import sqrt

import pytest

from paceline.costs.operations import (
    LayerOperations,
    Operation,
    StepOperations,
    attention,
    convolution,
    memory,
    product,
    update,
)
from paceline.predict.operations import STEP_DEVIATION, OperationTimer, Spread, Timed, peak_of, step_deviation
from paceline.predict.steps import step_seconds
from paceline.systems.files import load_hardware, shipped_systems
from paceline.systems.hardware import Calibration, Hardware, Quantity
from paceline.systems.operation_times import OperationTimes

GPUS = [name for name in shipped_systems() if load_hardware(name).kind == "cuda"]


def with_times(hardware: Hardware, **times: list[tuple[Operation, float]]) -> Hardware:
    tables = {name: (OperationTimes.of_rows(rows),) for name, rows in times.items()}
    calibration = Calibration(at="2020-01-01", machine="a machine", frameworks={}, **tables)  # type: ignore[arg-type]
    return hardware.model_copy(update={"calibration": calibration})


def law(operation: Operation) -> float:
    """A device that reaches more of its peak the larger each side is, and takes 4 microseconds at least."""
    _, rows, columns, inner = operation.shape
    reached = 0.75 * rows / (rows + 300) * columns / (columns + 200) * inner / (inner + 150)
    return 4e-6 + operation.flops / (989e12 * reached)


@pytest.fixture(scope="module")
def h200() -> Hardware:
    hardware = load_hardware("h200-nvlink").model_copy(update={"calibration": None})
    return hardware.model_copy(update={"uncertainty": Quantity(value=0.3, source="of a test")})


@pytest.fixture(scope="module")
def gridded(h200: Hardware) -> OperationTimer:
    sides = (64, 256, 1024, 4096, 16384)
    points = [product("bf16", *shape) for shape in crossed(sides, sides, sides)]
    return OperationTimer(with_times(h200, operations=[(point, law(point)) for point in points]))


def test_a_very_operation_that_was_timed_counts_before_a_grid_and_that_before_the_data_sheet(h200: Hardware) -> None:
    known, other, foreign = product("bf16", 512, 768, 768), product("bf16", 600, 768, 768), memory("bf16", 1e6, 2)
    hardware = with_times(
        h200, operations=[(known, 2e-3), (product("bf16", 64, 64, 64), 1e-3)], replayed=[(known, 1e-3)]
    )
    timer = OperationTimer(hardware)
    assert (timer.timed(known).seconds, timer.timed(known).source) == (1e-3, "replayed")
    assert timer.timed(other).source == "grid"
    assert timer.timed(foreign).source == "data sheet"
    assert timer.timed(known).deviation < timer.timed(other).deviation < timer.timed(foreign).deviation


def test_a_call_that_was_repeated_counts_before_all_and_with_what_its_kernels_do_unseen(h200: Hardware) -> None:
    known = replace(memory("bf16", 1e6, 2, "native_group_norm"), call="the call")
    copy = replace(memory("bf16", 1e6, 2, "contiguous"), call="the call", inside_call=True)
    step = StepOperations((LayerOperations("layer", (copy, known), ()), LayerOperations("loss", (), ())), ())
    without, with_call = (
        with_times(h200, operations=[(memory("bf16", 1e6, 2, "add"), 1e-3)], replayed=[(known, 1e-3)]) for _ in range(2)
    )
    assert with_call.calibration is not None
    calibration = with_call.calibration.model_copy(update={"replayed_calls": {"the call": 5e-3}})
    with_call = with_call.model_copy(update={"calibration": calibration})
    timed = step_seconds(step, OperationTimer(with_call), "eager")
    assert timed.device == 5e-3 and timed.sources == {"replayed": 5e-3}
    assert step_seconds(step, OperationTimer(without), "eager").device == pytest.approx(1e-3 + 4e-3)


@pytest.mark.parametrize("shape", [(512, 768, 3072), (8192, 2304, 768), (3000, 3000, 500), (128, 128, 10_000),
                                   (20_000, 12_000, 9_000)])  # fmt: skip
def test_between_its_points_a_grid_follows_what_it_was_made_of(gridded: OperationTimer, shape: tuple[int, ...]) -> None:
    wanted = product("bf16", *shape)
    timed = gridded.timed(wanted)
    assert timed.source == "grid"
    assert timed.seconds == pytest.approx(law(wanted), rel=0.15)


def test_at_its_points_a_grid_says_what_was_measured(gridded: OperationTimer) -> None:
    point = product("bf16", 1024, 256, 4096)
    assert gridded.timed(point).seconds == pytest.approx(law(point), rel=1e-6)


def test_beyond_its_points_a_grid_stays_near_the_largest_of_them(gridded: OperationTimer) -> None:
    huge = product("bf16", 200_000, 16384, 16384)
    assert gridded.timed(huge).seconds == pytest.approx(law(huge), rel=0.25)


def test_left_out_points_are_foreseen_within_a_fifth_on_the_mean(h200: Hardware) -> None:
    sides = (64, 256, 1024, 4096, 16384)
    points = [product("bf16", *shape) for shape in crossed(sides, sides, sides)]
    errors = []
    for place in range(0, len(points), 7):
        others = [(point, law(point)) for point in points if point != points[place]]
        made = OperationTimer(with_times(h200, operations=others)).timed(points[place]).seconds
        errors.append(abs(made / law(points[place]) - 1))
    assert sum(errors) / len(errors) < 0.2


@pytest.mark.parametrize("name", GPUS)
def test_by_the_data_sheet_more_takes_longer_and_nothing_beats_the_peaks(name: str) -> None:
    timer = OperationTimer(load_hardware(name).model_copy(update={"calibration": None}))
    for make in (
        lambda n: product("bf16", 256 * n, 1024, 1024), lambda n: convolution("bf16", (n, 64, 56, 56, 64, 3, 3, 1, 1)),
        lambda n: attention("bf16", n, (12, 12), (1024, 1024), 64, causal=True), lambda n: memory("bf16", 1e6 * n, 3),
        lambda n: update("adam", 1e6 * n),
    ):  # fmt: skip
        small, large = timer.timed(make(1)), timer.timed(make(64))
        assert small.seconds < large.seconds < 64 * small.seconds
        assert large.seconds > timer.least_seconds(make(64))


def test_small_products_reach_half_the_rate_where_the_description_says(h200: Hardware) -> None:
    device, timer = h200.device, OperationTimer(h200)
    edge = round((device.half_rate_flops.value / 2) ** (1 / 3))
    wanted = product("bf16", edge, edge, edge)
    rate = wanted.flops / timer.timed(wanted).seconds
    assert rate == pytest.approx(peak_of(device, "bf16") * device.product_efficiency.value / 2, rel=0.01)


def test_what_is_written_in_place_is_written(h200: Hardware) -> None:
    timer, moved = OperationTimer(h200), 4.0 * 1e8
    in_place = Operation("memory", "fp32", (100_000_000,), 1e8, moved, "relu_")
    beside = Operation("memory", "fp32", (100_000_000,), 1e8, 2 * moved, "relu")
    assert timer.timed(in_place).seconds == pytest.approx(timer.timed(beside).seconds)


def test_numbers_that_were_not_timed_go_by_those_that_were(gridded: OperationTimer) -> None:
    half, tf32 = (gridded.timed(product(numbers, 4096, 4096, 4096)) for numbers in ("fp16", "tf32"))
    assert half.source == tf32.source == "grid"
    assert half.seconds == pytest.approx(law(product("bf16", 4096, 4096, 4096)), rel=0.01)
    # Half as fast.
    assert tf32.seconds == pytest.approx(2 * half.seconds, rel=0.05)


def test_deviations_grow_where_points_disagree(h200: Hardware) -> None:
    def points(noise: float) -> list[tuple[Operation, float]]:
        return [
            (memory("bf16", 2.0**power, 3, "add"), 1e-6 * sqrt(2.0**power) * (1 + noise * (-1) ** power))
            for power in range(10, 28)
        ]

    wanted = memory("bf16", 3e5, 3, "add")
    calm, noisy = (OperationTimer(with_times(h200, operations=points(noise))).timed(wanted) for noise in (0.0, 0.5))
    assert noisy.deviation > 1.5 * calm.deviation


def test_measured_operations_are_off_by_chance_and_described_ones_alike() -> None:
    measured, described = Spread(), Spread()
    for _ in range(4):
        measured.add(Timed(1.0, "grid", 0.1), 1.0)
        described.add(Timed(1.0, "data sheet", 0.1), 1.0)
    assert measured.seconds == pytest.approx(0.2)
    assert described.seconds == pytest.approx(0.4)


def test_a_step_is_no_surer_than_what_lies_between_its_operations() -> None:
    assert step_deviation(0.0, {"replayed": 2.0}) == pytest.approx(STEP_DEVIATION)
    assert step_deviation(0.1, {"data sheet": 1.0}) == pytest.approx(0.1)
    assert step_deviation(0.05, {"grid": 1.0}) == pytest.approx(STEP_DEVIATION * sqrt(2))


def test_a_gelu_by_tanh_goes_by_the_exact_one_where_only_that_was_timed(h200: Hardware) -> None:
    exact, added = memory("bf16", 1e6, 2, "gelu"), memory("bf16", 1e6, 3, "add")
    by_tanh = memory("bf16", 1e6, 2, "gelu_tanh")
    times = (OperationTimes.of_rows([(exact, 3e-5)]), OperationTimes.of_rows([(added, 9e-5)]))
    calibration = Calibration(at="2020-01-01", machine="a machine", frameworks={}, operations=times)
    timer = OperationTimer(h200.model_copy(update={"calibration": calibration}))
    assert timer.timed(by_tanh).seconds == pytest.approx(3e-5)


def test_a_core_asks_itself_so_that_asking_is_part_of_each_operation() -> None:
    cores = load_hardware("cpu-2-cores")
    known = product("fp32", 64, 64, 64)
    timer = OperationTimer(with_times(cores, operations=[(known, 1e-5)]))
    assert timer.timed(known).seconds == pytest.approx(1e-5 + cores.device.host_seconds_per_operation["eager"].value)
    assert OperationTimer(load_hardware("h200-nvlink")).asking_seconds == 0


def test_operations_on_a_slice_take_longer_while_other_slices_compute(h200: Hardware) -> None:
    crowding = {"2": {"product": 1.0, "add": 1.3}, "4": {"product": 1.2, "add": 2.1, "gelu": 1.1}}
    calibration = h200.calibrated.model_copy(update={"operation_crowding": crowding})
    slices = h200.model_copy(update={"calibration": calibration, "slices": 4})
    operations = {name: memory("bf16", 1e7, 2, name) for name in ("add", "gelu", "exp")}
    operations["product"] = product("bf16", 1024, 1024, 1024)

    def slowdown(name: str, busy: float) -> float:
        alone, crowded = (OperationTimer(slices, count).timed(operations[name]).seconds for count in (1.0, busy))
        return crowded / alone

    assert [slowdown("product", busy) for busy in (1.0, 2.0, 4.0)] == pytest.approx([1.0, 1.0, 1.2])
    # Between the numbers of slices that were measured, and for passes over memory that were not.
    assert slowdown("add", 3.0) == pytest.approx(1.7)
    assert slowdown("exp", 4.0) == pytest.approx(2.1)
    assert slowdown("gelu", 4.0) == pytest.approx(1.1)
