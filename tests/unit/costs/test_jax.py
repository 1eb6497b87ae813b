"""What is said about JAX runs without JAX."""

import pytest

from paceline.contract.context import Process
from paceline.contract.strategy import Role
from paceline.costs import jax as costs
from paceline.frameworks.jax import declared
from paceline.spec import Optimizer, RunSpec

SPEC = RunSpec(strategy="jax-data", workers=4, global_batch=64, steps=1)
APART = SPEC.model_copy(update={"knobs": {"processes": True}})
PROCESS = Process(0, 1, "worker", 0, (0, 1))


def test_one_process_has_a_device_for_each_worker_and_several_have_one_each() -> None:
    assert declared.roles(SPEC) == (Role("worker", 1, workers_each=4),)
    assert declared.environment(SPEC, PROCESS)["JAX_NUM_CPU_DEVICES"] == "4"
    assert declared.roles(APART) == (Role("worker", 4),)
    assert declared.environment(APART, PROCESS)["JAX_NUM_CPU_DEVICES"] == "1"


def test_threads_are_as_many_as_cores_or_twice_the_devices_that_wait_for_each_other() -> None:
    assert declared.environment(APART, PROCESS)["NPROC"] == "2"
    assert declared.environment(SPEC, PROCESS)["NPROC"] == "8"


def test_a_gpu_is_not_filled_at_once() -> None:
    on_gpu = declared.environment(SPEC.model_copy(update={"device": "cuda"}), PROCESS)
    assert on_gpu["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"


@pytest.mark.parametrize(("shape", "ways", "dimension"), [
    ((6272, 64), 4, 0), ((3, 3, 1, 32), 2, 3), ((32, 96), 3, 1), ((10,), 4, None), ((), 2, None), ((8, 8), 1, None),
])  # fmt: skip
def test_the_largest_dimension_that_divides_is_divided(
    shape: tuple[int, ...], ways: int, dimension: int | None
) -> None:
    assert costs.divided_dimension(shape, ways) == dimension


def test_optimizer_state_is_counted_with_one_counter_for_all_arrays() -> None:
    assert costs.optimizer_bytes(Optimizer(), 10) == 84
    assert costs.optimizer_bytes(Optimizer(name="adagrad"), 10) == 40
    assert costs.optimizer_bytes(Optimizer(name="sgd"), 10) == 0
    assert costs.optimizer_bytes(Optimizer(name="sgd", momentum=0.9), 10) == 40


def test_running_out_of_memory_is_told_from_other_failures_of_a_device() -> None:
    failure = type("JaxRuntimeError", (RuntimeError,), {})
    assert declared.is_out_of_memory(failure("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes."))
    assert not declared.is_out_of_memory(failure("INTERNAL: RESOURCE_EXHAUSTED was not it"))
    assert declared.is_out_of_memory(MemoryError())
