"""Two streams of a step: the device's operations, and the host's that asks for them."""

import pytest

from paceline.contract.context import spec_facts
from paceline.costs.layer_operations import model_operations
from paceline.costs.operations import LayerOperations, StepOperations, memory, product, update
from paceline.plan import complete
from paceline.predict.compute import Compute
from paceline.predict.operations import OperationTimer
from paceline.predict.steps import BESIDE, like_layers, start_units, step_seconds, two_streams
from paceline.spec import Execution, Optimizer, RunSpec
from paceline.systems.files import load_hardware
from paceline.systems.hardware import Hardware, Quantity

LARGE, SMALL = product("bf16", 8192, 8192, 8192), product("bf16", 8, 8, 8)


def hardware_with(host_seconds: float) -> Hardware:
    hardware = load_hardware("h200-nvlink").model_copy(update={"calibration": None})
    asked: dict[Execution, Quantity] = {"eager": Quantity(value=host_seconds, source="of a test")}
    return hardware.model_copy(
        update={"device": hardware.device.model_copy(update={"host_seconds_per_operation": asked})}
    )


def step_of(*operations: object) -> StepOperations:
    return StepOperations((LayerOperations("one", tuple(operations), ()), LayerOperations("loss", (), ())), ())  # type: ignore[arg-type]


def test_layers_within_a_member_of_a_list_are_gathered_with_it() -> None:
    names = [
        "embedding",
        "blocks.0.norm",
        "blocks.0.mlp.0",
        "blocks.0.mlp.2",
        "blocks.1.norm",
        "blocks.1.mlp.0",
        "0",
        "1",
    ]
    assert list(start_units(names)) == [True, True, False, False, True, False, True, True]


def test_a_step_takes_as_long_as_the_slower_stream() -> None:
    timer = OperationTimer(hardware_with(1e-5))
    slow_device = step_seconds(step_of(LARGE, LARGE), timer, "eager")
    assert not slow_device.host_bound
    assert slow_device.total == pytest.approx(slow_device.device) == pytest.approx(2 * timer.timed(LARGE).seconds)
    slow_host = step_seconds(step_of(*[SMALL] * 100), timer, "eager")
    assert slow_host.host_bound
    assert slow_host.total == pytest.approx(slow_host.host) == pytest.approx((100 + BESIDE) * 1e-5)
    assert slow_host.deviation > 0.1


def test_where_the_host_waits_neither_stream_runs_ahead() -> None:
    timer = OperationTimer(hardware_with(2e-4))
    waits = memory("bf16", 8, 2, waits=True)
    together = step_seconds(step_of(LARGE, *[SMALL] * 20), timer, "eager")
    apart = step_seconds(step_of(LARGE, LARGE, LARGE, waits, *[SMALL] * 20), timer, "eager")
    assert together.total == pytest.approx(together.host)
    assert apart.total > max(apart.host, apart.device)


def test_a_graph_asks_for_next_to_nothing_and_a_compiler_for_fewer() -> None:
    facts = spec_facts(complete(RunSpec(workload="gpt", global_batch=1, steps=1)))
    timer = OperationTimer(load_hardware("h200-nvlink").model_copy(update={"calibration": None}))
    operations = model_operations(facts, 1, "bf16", Optimizer())
    eager, compiled, graph = (step_seconds(operations, timer, name) for name in ("eager", "compiled", "graph"))
    assert eager.host_bound and not graph.host_bound
    assert eager.host > compiled.host > graph.host
    assert compiled.device < eager.device == graph.device


def test_passes_of_a_gpu_have_the_hosts_seconds_for_each_layer() -> None:
    facts = spec_facts(complete(RunSpec(workload="gpt", global_batch=1, steps=1)))
    compute = Compute(hardware_with(2e-5), "torch", "bf16")
    few, many = compute.passes(facts, 1), compute.passes(facts, 32)
    assert len(few.forward) == len(few.host_forward) == len(facts.layers) == len(few.backward)
    assert few.total == pytest.approx(sum(few.host_forward) + sum(few.host_backward))
    assert few.least == many.least
    assert many.total > 3 * many.least
    assert "takes longer to launch kernels" in few.source and "takes longer" not in many.source
    assert few.deviation != many.deviation


def test_a_step_with_other_layers_is_shared_out_as_the_layers_are() -> None:
    timer = OperationTimer(hardware_with(1e-6))
    whole = step_seconds(step_of(LARGE, LARGE), timer, "eager")
    halves = step_seconds(
        StepOperations(
            (LayerOperations("a", (LARGE,), ()), LayerOperations("b", (SMALL,), ()), LayerOperations("loss", (), ())),
            (),
        ),
        timer, "eager",
    )  # fmt: skip
    shared = like_layers(whole, halves)
    assert len(shared.forward) == 3
    assert shared.device == pytest.approx(whole.device)
    assert shared.forward[0].device > 100 * shared.forward[1].device


def test_updates_go_by_the_optimizer() -> None:
    timer = OperationTimer(hardware_with(0.0))
    adam, plain = (timer.timed(update(name, 1e9)).seconds for name in ("adam", "sgd"))
    assert adam > 2 * plain


@pytest.mark.parametrize(
    ("launches", "beside", "seconds"),
    [
        # The device decides, or the host does.
        ([(2.0, 1.0, False)] * 10, 0.0, 20.0),
        ([(1.0, 2.0, False)] * 10, 3.0, 23.0),
        # The host waits for each result: nothing overlaps.
        ([(2.0, 1.0, True)] * 10, 0.0, 30.0),
        # A core asks itself.
        ([(2.0, 0.0, False)] * 10, 1.0, 20.0),
        # Long operations let the host run ahead, and what follows them is there at once.
        ([(10.0, 1.0, False)] * 5 + [(0.1, 1.0, False)] * 20, 0.0, 52.0),
    ],
)
def test_a_step_is_what_two_streams_with_a_queue_take(
    launches: list[tuple[float, float, bool]], beside: float, seconds: float
) -> None:
    assert two_streams(launches, beside) == pytest.approx(seconds)


def test_a_host_that_cannot_run_far_enough_ahead_costs_the_device_time() -> None:
    # So many long operations that the queue is full of them when short ones follow, more than it can hold.
    launches = [(1.0, 0.1, False)] * 4000 + [(0.01, 1.0, False)] * 4000
    device, host = (sum(launch[which] for launch in launches) for which in (0, 1))
    assert two_streams(launches, 0.0) > 1.5 * max(device, host)
