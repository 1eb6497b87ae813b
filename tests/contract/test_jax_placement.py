"""JAX strategies really spread what they say: parts of parameters on devices, collectives in what XLA compiled."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contract.conftest import WORKLOADS
from paceline.contract.context import spec_facts
from paceline.costs.jax import divided_dimension
from paceline.errors import ModelError
from paceline.plan import PlannedRun, complete, refusal
from paceline.runs.launch import launch
from paceline.runs.probe import probe
from paceline.spec import ModelFile, RunSpec
from paceline.strategies import strategy
from paceline.systems import local_system

pytest.importorskip("jax", reason="JAX is not installed")
pytestmark = pytest.mark.jax

SPREAD = ("jax-data", "jax-fsdp", "jax-tensor")
KERAS = "keras-model-parallel"
# Not a size of anything in the models, so that arrays of a batch can be told from others.
BATCH = 44
OWN = """
import jax, jax.numpy as jnp, numpy as np
def init(key):
    first, second = jax.random.split(key)
    return {"hidden": {"kernel": 0.3 * jax.random.normal(first, (12, 8)), "bias": jnp.zeros(8)},
            "out": [0.3 * jax.random.normal(second, (8, 4)), jnp.zeros(4)]}
def apply(params, inputs):
    hidden = jnp.tanh(inputs @ params["hidden"]["kernel"] + params["hidden"]["bias"])
    return hidden @ params["out"][0] + params["out"][1]
def build():
    return init, apply
def data():
    made = np.random.default_rng(0)
    inputs = made.normal(size=(96, 12)).astype("float32")
    targets = (inputs[:, :4]).argmax(1)
    return inputs[:64], targets[:64], inputs[64:], targets[64:]
"""
OPTIMIZER = """
from typing import NamedTuple
class Moving(NamedTuple):
    count: jax.Array
    velocity: dict
class optimizer:
    def __init__(self, params): pass
    def init(self, params):
        return Moving(jnp.zeros((), jnp.int32), jax.tree.map(jnp.zeros_like, params))
    def update(self, gradients, state, params):
        velocity = jax.tree.map(lambda v, g: 0.9 * v + g, state.velocity, gradients)
        return jax.tree.map(lambda v: -0.05 * v, velocity), Moving(state.count + 1, velocity)
"""
PLAN = """
def plan(params):
    return {"hidden": {"kernel": "columns", "bias": "columns"}, "out.0": "rows"}
"""


def spec_of(workload: str, **fields: Any) -> RunSpec:
    return complete(RunSpec.parse({"steps": 4, **WORKLOADS[workload], **fields}, "placement"))


def neutral_sizes(spec: RunSpec) -> dict[str, int]:
    layers = spec_facts(spec).layers
    return {f"{layer.name}.{part}": math.prod(shape) for layer in layers for part, shape in layer.arrays}


def test_each_device_of_jax_data_has_the_whole_model_and_half_of_the_batch(look: Any) -> None:
    spec = spec_of("mnist-small", strategy="jax-data", workers=2, global_batch=BATCH)
    found = look(spec)
    for name, size in neutral_sizes(spec).items():
        assert [math.prod(part) for part in found["parts"][name]] == [size, size], name
    assert found["collectives"] == {"all-reduce": 1}
    assert found["rows"].get(str(BATCH // 2), 0) > 5
    assert str(BATCH) not in found["rows"]


@pytest.mark.parametrize(("workload", "workers"), [("mnist-small", 4), ("transformer", 2)])
def test_each_device_of_jax_fsdp_has_its_share_of_every_array_that_divides(
    workload: str, workers: int, look: Any
) -> None:
    spec = spec_of(workload, strategy="jax-fsdp", workers=workers)
    found, gathered = look(spec), 0
    for layer in spec_facts(spec).layers:
        for part, shape in layer.arrays:
            divided = divided_dimension(shape, workers) is not None
            gathered += divided
            expected = math.prod(shape) // (workers if divided else 1)
            assert [math.prod(one) for one in found["parts"][f"{layer.name}.{part}"]] == [expected] * workers
    assert found["collectives"].pop("all-gather") == gathered
    # CPU devices have no reduce-scatter: gradients are summed everywhere, and each device keeps its part.
    assert set(found["collectives"]) <= {"all-reduce", "reduce-scatter"}
    assert sum(found["collectives"].values()) >= 1


def test_each_device_of_jax_tensor_has_half_of_every_split_layer(look: Any) -> None:
    spec = spec_of("mnist-small", strategy="jax-tensor", workers=2, global_batch=BATCH)
    found = look(spec)
    assert found["parts"]["0_conv.kernel"] == [[3, 3, 1, 16]] * 2
    assert found["parts"]["3_dense.kernel"] == [[196, 16, 64]] * 2
    assert found["parts"]["4_dense.kernel"] == [[64, 5]] * 2
    assert found["parts"]["3_dense.bias"] == [[64]] * 2
    # The sum of rows, the logits put together, the gradient of the last layer's input.
    assert found["collectives"] == {"all-reduce": 2, "all-gather": 1}
    assert str(BATCH // 2) not in found["rows"]


def test_jax_tensor_sums_twice_forward_and_twice_backward_in_each_block(look: Any) -> None:
    found = look(spec_of("transformer", strategy="jax-tensor", workers=2))
    assert found["parts"]["1_block.qkv_kernel"] == [[32, 3, 2, 8]] * 2
    assert found["parts"]["1_block.out_kernel"] == [[16, 32]] * 2
    assert found["parts"]["1_block.down_kernel"] == [[64, 32]] * 2
    # Two blocks of four sums and one for the head's input; the logits are put together.
    assert found["collectives"] == {"all-reduce": 9, "all-gather": 1}


def test_jax_tensor_leaves_convolutions_whole_when_asked(look: Any) -> None:
    knobs = {"convolutions": "replicated"}
    found = look(spec_of("mnist-small", strategy="jax-tensor", workers=2, knobs=knobs))
    assert found["parts"]["0_conv.kernel"] == [[3, 3, 1, 32]] * 2
    assert found["parts"]["3_dense.kernel"] == [[6272, 32]] * 2


@pytest.mark.parametrize("name", [*SPREAD, KERAS])
@pytest.mark.parametrize("workload", ["mnist-small", "transformer"])
def test_the_footprint_holds_what_the_devices_hold(name: str, workload: str, trained: Any) -> None:
    record = trained(workload, strategy=name, workers=2).record
    groups = strategy(name).footprint(record.spec, spec_facts(record.spec)).groups
    held = record.ranks[0].details["held_bytes"]
    assert held["parameters"] == sum(group.parameter_bytes * group.ranks for group in groups)
    assert held["optimizer"] == sum(group.optimizer_bytes * group.ranks for group in groups)


@pytest.mark.parametrize("name", SPREAD)
@pytest.mark.parametrize("workload", ["mnist-small", pytest.param("transformer", marks=pytest.mark.soak)])
def test_a_process_for_each_worker_trains_as_one_process_does(name: str, workload: str, trained: Any) -> None:
    apart = trained(workload, strategy=name, workers=2, knobs={"processes": True})
    single = trained(workload, strategy="jax-single")
    assert [rank.details["devices"] for rank in apart.record.ranks] == [1, 1]
    np.testing.assert_allclose(apart.losses, single.losses, rtol=1e-4)
    for array, other in zip(single.weights.values(), apart.weights.values(), strict=True):
        np.testing.assert_allclose(other, array, atol=2e-4)
    spec = apart.record.spec
    share = strategy(name).footprint(spec, spec_facts(spec)).groups[0]
    held = [rank.details["held_bytes"] for rank in apart.record.ranks]
    assert held == [{"parameters": share.parameter_bytes, "optimizer": share.optimizer_bytes}] * 2


@pytest.mark.parametrize("name", ["jax-single", "jax-data"])
def test_several_steps_in_one_call_are_the_same_steps(name: str, trained: Any) -> None:
    workers = strategy(name).needs.fixed_workers or 2
    several = trained("mnist-small", strategy=name, workers=workers, knobs={"steps_per_execution": 8})
    single = trained("mnist-small", strategy="jax-single")
    assert len(several.record.step_seconds[0]) < len(single.record.step_seconds[0])
    np.testing.assert_allclose(several.losses, single.losses, rtol=1e-4)


@pytest.mark.parametrize("optimizer", [
    {"name": "sgd", "lr": 0.05}, {"name": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 0.01},
    {"name": "adagrad", "lr": 0.01}, {"name": "adam", "weight_decay": 0.1},
], ids=["sgd", "momentum", "adagrad", "decay"])  # fmt: skip
@pytest.mark.torch
def test_every_optimizer_means_what_it_means_in_pytorch(optimizer: dict[str, Any], trained: Any) -> None:
    there = trained("mnist-small", strategy="torch-single", optimizer=optimizer)
    here = trained("mnist-small", strategy="jax-single", optimizer=optimizer)
    np.testing.assert_allclose(here.losses, there.losses, rtol=1e-3)


def test_half_precision_stays_near_single_precision(trained: Any) -> None:
    half, whole = (trained("mnist-small", strategy="jax-single", precision=kind) for kind in ("bf16", "fp32"))
    assert not np.array_equal(half.losses, whole.losses)
    np.testing.assert_allclose(half.losses, whole.losses, rtol=0.05)


@pytest.fixture
def own_file(tmp_path: Path) -> Callable[[str], dict[str, Any]]:
    def fields(text: str) -> dict[str, Any]:
        path = tmp_path / "mine.py"
        path.write_text(text)
        return {
            "model": ModelFile.from_text(f"{path}:build"),
            "dataset": None,
            "train_samples": None,
            "optimizer": {"lr": 0.02},
        }

    return fields


def test_a_pair_of_functions_trains_the_same_under_every_jax_strategy(own_file: Any, trained: Any) -> None:
    fields = own_file(OWN + PLAN)
    single = trained("mnist-small", strategy="jax-single", global_batch=16, **fields)
    assert single.losses[-1] < single.losses[0]
    assert set(single.weights) == {"hidden.kernel", "hidden.bias", "out.0", "out.1"}
    for name in SPREAD:
        spread = trained("mnist-small", strategy=name, workers=2, global_batch=16, **fields)
        np.testing.assert_allclose(spread.losses, single.losses, rtol=1e-4)
        np.testing.assert_allclose(spread.weights["hidden.kernel"], single.weights["hidden.kernel"], atol=2e-4)


def test_a_pair_of_functions_may_bring_an_optimizer_whose_state_is_divided_too(own_file: Any, trained: Any) -> None:
    fields = own_file(OWN + OPTIMIZER)
    single = trained("mnist-small", strategy="jax-single", global_batch=16, **fields)
    spread = trained("mnist-small", strategy="jax-fsdp", workers=2, global_batch=16, **fields)
    assert single.losses[-1] < single.losses[0]
    np.testing.assert_allclose(spread.losses, single.losses, rtol=1e-4)
    held = [trained.record.ranks[0].details["held_bytes"] for trained in (single, spread)]
    # Twice half of the velocities, and on each device the count of steps.
    assert held[1]["optimizer"] == held[0]["optimizer"] + 4


@pytest.mark.parametrize(("text", "words"), [
    ("def build(): return [1]", "returned list"),
    ("def build(): return (lambda key: 1 / 0), (lambda params, inputs: inputs)", "init(key) of mine.py:build fails"),
    ("def build(): return (lambda key: {}), (lambda params, inputs: inputs)", "there is nothing to train"),
    ("def build(): return (lambda key: {'a': np.arange(3)}), (lambda params, inputs: inputs)", "floating-point"),
    ("def build(): return init, (lambda params, inputs: inputs @ np.ones((5, 4)))", "does not take inputs of shape 12"),
    ("def build(): return init, (lambda params, inputs: apply(params, inputs)[:, :2])", "does not fit its targets"),
    ("def loss(outputs, targets): return outputs.nothing", "loss() of mine.py:build fails with AttributeError"),
    ("def loss(outputs, targets): return outputs.mean(1)", "loss() of mine.py:build has shape (2,); return one number"),
    (
        "def build(): return init, (lambda params, inputs: apply(params, inputs) * (1 if inputs.sum() > 0 else 2))",
        "mine.py:build works by itself and cannot be compiled: TracerBoolConversionError (mine.py, line",
    ),
    ("def metric(outputs, targets): return float(outputs.mean())", "metric() of mine.py:build works by itself"),
], ids=[
    "no pair", "init fails", "empty", "whole numbers", "shape", "classes", "loss", "losses", "if", "metric",
])  # fmt: skip
def test_what_is_wrong_with_a_pair_is_said_before_anything_starts(text: str, words: str, own_file: Any) -> None:
    spec = spec_of("mnist-small", strategy="jax-single", global_batch=16, **own_file(f"{OWN}\n{text}\n"))
    with pytest.raises(ModelError) as complaint:
        refusal(spec, local_system(), probe)
    assert words in str(complaint.value)


@pytest.mark.parametrize(("plan", "words"), [
    ("{'nothing': 'rows'}", "names 'nothing', which is no parameter"),
    ("{'out.0': 'wide'}", 'give "columns" or "rows"'),
    ("{}", "must return"),
    ("1 / 0", "fails with ZeroDivisionError"),
    ("{'odd': 'columns'}", "do not divide over 2 workers"),
])  # fmt: skip
def test_what_is_wrong_with_a_plan_for_a_pair_is_said(plan: str, words: str, own_file: Any, trained: Any) -> None:
    odd = "def build(): return (lambda key: {**init(key), 'odd': jnp.ones(3)}), apply"
    fields = own_file(f"{OWN}\n{odd}\ndef plan(params):\n    return {plan}\n")
    spec = spec_of("mnist-small", strategy="jax-tensor", workers=2, global_batch=16, **fields)
    record = launch(PlannedRun(spec, 0), "plans", local_system(), lambda _event: None, launcher=trained.launcher(spec))
    assert words in str(record.reason)


def test_a_pair_of_functions_is_split_as_its_plan_says(own_file: Any, look: Any) -> None:
    fields = {"strategy": "jax-tensor", "workers": 2, "global_batch": 16, **own_file(OWN + PLAN)}
    parts = look(spec_of("mnist-small", **fields))["parts"]
    assert parts["hidden.kernel"] == [[12, 4]] * 2
    assert parts["hidden.bias"] == [[4]] * 2
    assert parts["out.0"] == [[4, 4]] * 2
    assert parts["out.1"] == [[4]] * 2


def test_jax_tensor_refuses_a_pair_without_a_plan(own_file: Any) -> None:
    spec = spec_of("mnist-small", strategy="jax-tensor", workers=2, global_batch=16, **own_file(OWN))
    assert "add a function plan to mine.py" in str(refusal(spec, local_system(), probe))


@pytest.mark.parametrize(("field", "value", "words"), [
    ("memory_format", "contiguous", "keep images channels-last"),
    ("optimizer", {"name": "lbfgs"}, "adam, adamw, sgd and adagrad"),
    ("knobs", {"steps_per_execution": 0}, "must be at least 1"),
])  # fmt: skip
def test_what_jax_cannot_do_is_refused_in_words(field: str, value: Any, words: str) -> None:
    spec = spec_of("mnist-small", strategy="jax-single", **{field: value})
    assert words in str(refusal(spec, local_system(), probe))
