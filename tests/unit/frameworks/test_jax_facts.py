"""What is said about JAX runs without JAX."""

import pytest

from paceline.frameworks import jax_facts
from paceline.spec import Optimizer, RunSpec
from paceline.strategies.base import Process, Role

SPEC = RunSpec(strategy="jax-data", workers=4, global_batch=64, steps=1)
APART = SPEC.model_copy(update={"knobs": {"processes": True}})
PROCESS = Process(0, 1, "worker", 0, (0, 1))


def test_one_process_has_a_device_for_each_worker_and_several_have_one_each() -> None:
    assert jax_facts.roles(SPEC) == (Role("worker", 1, workers_each=4),)
    assert jax_facts.environment(SPEC, PROCESS)["JAX_NUM_CPU_DEVICES"] == "4"
    assert jax_facts.roles(APART) == (Role("worker", 4),)
    assert jax_facts.environment(APART, PROCESS)["JAX_NUM_CPU_DEVICES"] == "1"


def test_threads_are_as_many_as_cores_and_a_gpu_is_not_filled_at_once() -> None:
    assert jax_facts.environment(SPEC, PROCESS)["NPROC"] == "2"
    on_gpu = jax_facts.environment(SPEC.model_copy(update={"device": "cuda"}), PROCESS)
    assert on_gpu["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"


@pytest.mark.parametrize(("shape", "ways", "dimension"), [
    ((6272, 64), 4, 0), ((3, 3, 1, 32), 2, 3), ((32, 96), 3, 1), ((10,), 4, None), ((), 2, None), ((8, 8), 1, None),
])  # fmt: skip
def test_the_largest_dimension_that_divides_is_divided(
    shape: tuple[int, ...], ways: int, dimension: int | None
) -> None:
    assert jax_facts.divided_dimension(shape, ways) == dimension


def test_optimizer_state_is_counted_with_one_counter_for_all_arrays() -> None:
    assert jax_facts.optimizer_bytes(Optimizer(), 10) == 84
    assert jax_facts.optimizer_bytes(Optimizer(name="adagrad"), 10) == 40
    assert jax_facts.optimizer_bytes(Optimizer(name="sgd"), 10) == 0
    assert jax_facts.optimizer_bytes(Optimizer(name="sgd", momentum=0.9), 10) == 40


def test_running_out_of_memory_is_told_from_other_failures_of_a_device() -> None:
    failure = type("JaxRuntimeError", (RuntimeError,), {})
    assert jax_facts.is_out_of_memory(failure("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes."))
    assert not jax_facts.is_out_of_memory(failure("INTERNAL: RESOURCE_EXHAUSTED was not it"))
    assert jax_facts.is_out_of_memory(MemoryError())
