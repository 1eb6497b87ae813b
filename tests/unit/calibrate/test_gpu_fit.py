"""What a GPU's gauge reports becomes a system file, and two of them become one."""

import tomllib

import pytest

from paceline.calibrate.gpu.cases import (
    MOST_FLOPS,
    attention_cases,
    convolution_cases,
    memory_cases,
    product_cases,
    that_fit,
    update_cases,
)
from paceline.calibrate.gpu.fit import curves_of, efficiencies, grid_of, host_seconds, link_of, nearest_description
from paceline.calibrate.gpu.messages import GpuAnswer, GpuRequest, HostTiming, TimedOperation, TimedTransfer
from paceline.calibrate.gpu.replay import distinct_operations, replay_of
from paceline.calibrate.merge import merge_systems
from paceline.costs.layer_operations import model_operations
from paceline.costs.operations import Operation, convolution, memory, product
from paceline.predict.operations import OperationTimer
from paceline.predict.question import Question
from paceline.spec import Optimizer
from paceline.systems.files import load_hardware, to_toml
from paceline.systems.hardware import LOCAL, Calibration, Hardware

H200 = load_hardware("h200-nvlink")


def timed(operation: Operation, seconds: float) -> TimedOperation:
    return TimedOperation(operation=operation, seconds=seconds)


def measured_system(factor: float = 1.0) -> Hardware:
    rows = [
        timed(product("bf16", 1024, 1024, 1024), 1e-5 * factor),
        timed(product("bf16", 4096, 4096, 4096, backward=True), 2e-4),
        timed(convolution("tf32", (8, 64, 56, 56, 64, 3, 3, 1, 1), backward=True, gradients=1), 1e-4 * factor),
        timed(memory("bf16", 1e6, 3, "add"), 4e-6),
    ]
    calibration = Calibration(
        at="2020-01-01", machine="a host", frameworks={"torch": "2"}, gpu="NVIDIA H200", operations=grid_of(rows)
    )
    return H200.model_copy(update={"name": LOCAL, "calibration": calibration})


def test_a_grid_survives_its_file() -> None:
    system = measured_system()
    text = to_toml(system.model_dump(mode="json", exclude_none=True))
    assert Hardware.read(tomllib.loads(text), "test") == system
    read = OperationTimer(Hardware.read(tomllib.loads(text), "test"))
    assert read.timed(product("bf16", 1024, 1024, 1024)).seconds == pytest.approx(1e-5)


def test_the_shorter_time_of_two_calibrations_is_kept_and_old_files_have_none() -> None:
    for factors in ((1.0, 3.0), (3.0, 1.0)):
        merged = merge_systems(*map(measured_system, factors))
        assert merged.calibration is not None
        rows = {operation: seconds for times in merged.calibration.operations for operation, seconds in times.rows()}
        assert rows[product("bf16", 1024, 1024, 1024)] == 1e-5
        assert len(rows) == 4
    older = Calibration.model_validate({"at": "2019-01-01", "machine": "a host", "frameworks": {}})
    assert older.operations == older.replayed == ()


def test_another_gpus_operations_are_not_mixed_in() -> None:
    other, new = measured_system(0.1), measured_system()
    assert other.calibration is not None
    other = other.model_copy(update={"calibration": other.calibration.model_copy(update={"gpu": "NVIDIA A100"})})
    assert merge_systems(other, new) == new


def test_efficiencies_are_those_of_large_products_small_ones_and_passes_over_memory() -> None:
    peak, reached, fixed = 989e12, 0.7, 5e-6
    rows = [
        timed(one, one.flops / (peak * reached) + fixed)
        for one in (product("bf16", n, n, n) for n in (64, 256, 512, 1024, 8192, 16384))
    ]
    rows += [timed(memory("bf16", n, 3, "add"), 6 * n / 4.8e12 / 0.9) for n in (1e8, 1e9)]
    found = efficiencies(rows, H200.device, "of a test")
    assert found["product_efficiency"].value == pytest.approx(reached, rel=0.01)
    assert found["half_rate_flops"].value == pytest.approx(fixed * peak * reached, rel=0.05)
    assert found["memory_efficiency"].value == pytest.approx(0.9, rel=0.01)


def test_the_hosts_seconds_are_a_tiny_steps_over_its_operations() -> None:
    timings = [
        HostTiming(model="mlp", execution="eager", precision="tf32", seconds=1e-3),
        HostTiming(model="transformer", execution="compiled", precision="bf16", seconds=1e-3),
    ]
    found = host_seconds(timings, H200.device, "of a test")["host_seconds_per_operation"]
    assert 1e-5 < found["eager"].value < 5e-5
    assert found["compiled"].value < found["eager"].value
    assert found["graph"] == H200.device.host_seconds_per_operation["graph"]


def test_transfers_become_curves_and_those_of_two_ranks_a_link() -> None:
    rows = [
        TimedTransfer(kind=kind, payload_bytes=size, seconds=4e-5 + size / 150e9)
        for kind in ("all-reduce", "send")
        for size in (1 << 10, 1 << 20, 1 << 28)
    ]
    curves = curves_of(rows, 2)
    assert [(curve.kind, curve.ranks, curve.transport) for curve in curves] == [
        ("all-reduce", 2, "nccl"),
        ("send", 2, "nccl"),
    ]
    link = link_of(curves, "of a test")
    assert link.bytes_per_second.value == pytest.approx(150e9, rel=0.05)
    assert link.latency_seconds.value == pytest.approx(2e-5, rel=0.05)


@pytest.mark.parametrize(
    ("gpu", "system"),
    [("NVIDIA H200", "h200-nvlink"), ("NVIDIA A100-SXM4-80GB", "a100-nvlink"), ("Tesla V100-SXM2-16GB", "v100-nvlink"),
     ("NVIDIA L4", "l4-pcie"), ("NVIDIA GB200", "gb200-nvl72"), ("something new", "h100-nvlink")],
)  # fmt: skip
def test_what_is_not_measured_is_taken_from_the_same_gpu(gpu: str, system: str) -> None:
    assert nearest_description(gpu).name == system


def test_the_grid_covers_what_models_ask_for_and_each_case_once() -> None:
    for cases in (product_cases(), convolution_cases(), attention_cases(), memory_cases(), update_cases()):
        assert len(cases) == len(set(cases)) > 8
    sizes = [case.shape for case in product_cases()]
    assert min(min(shape[1:]) for shape in sizes) <= 16 and max(max(shape) for shape in sizes) >= 50_257
    # The same on every machine: calibrations are compared.
    assert product_cases() == product_cases()


@pytest.mark.parametrize("share", [1 / 2, 1 / 8])
def test_a_slice_gets_operations_of_all_kinds_that_it_computes_in_as_long_as_the_gpu_the_largest(share: float) -> None:
    for cases in (product_cases(), convolution_cases(), attention_cases(), memory_cases(), update_cases()):
        fitting = that_fit(cases, share)
        kinds = {(case.kind, case.numbers, case.backward, case.name) for case in cases}
        assert {(case.kind, case.numbers, case.backward, case.name) for case in fitting} == kinds
        assert max(case.flops for case in fitting) <= share * MOST_FLOPS
        assert len(fitting) > len(cases) / 2
    assert {case.numbers for case in that_fit(attention_cases(), share)[:8]} == {"bf16", "tf32"}


def test_a_models_own_operations_are_replayed_once_each() -> None:
    question = Question(H200, workload="gpt")
    few = replay_of(question, [4])
    step = model_operations(question.facts, 4, "bf16", Optimizer())
    by_layer = {operation for operation in few.operations if not operation.call}
    assert set(distinct_operations([step])) < by_layer
    assert len(few.operations) == len(set(few.operations))
    assert len(by_layer) < sum(len(layer.forward) + len(layer.backward) for layer in step.layers)
    assert set(few.operations) <= set(replay_of(question, [4, 8]).operations)


def test_the_very_calls_of_traced_steps_come_first_and_the_file_says_for_which_batches() -> None:
    pytest.importorskip("torch")
    question = Question(H200, workload="gpt", options={"depth": 1, "width": 64, "heads": 2, "sequence": 16})
    replay = replay_of(question, [4])
    assert replay.operations[0].call.startswith("('aten::")
    assert not any(operation.inside_call for operation in replay.operations)
    assert list(replay.batches.values()) == [(4,)]


def test_requests_and_answers_travel_as_text() -> None:
    asked = GpuRequest(
        parts=("products", "replay"), seconds={"products": 1.0}, device="cuda", store="s", progress="p", answer="a",  # type: ignore[arg-type]
        replay=(product("bf16", 8, 8, 8),),
    )  # fmt: skip
    assert GpuRequest.model_validate_json(asked.model_dump_json()) == asked
    answer = GpuAnswer(operations=(timed(memory("bf16", 8, 2), 1e-6),), failures={"links": "no NCCL"})
    assert GpuAnswer.model_validate_json(answer.model_dump_json()) == answer
