"""What workers and servers are predicted to hold on a machine that was calibrated, by hand."""

from typing import Any

import pytest

from paceline.contract.context import spec_facts
from paceline.costs.footprint import ModelFacts
from paceline.plan import complete
from paceline.predict.compute import model_digest
from paceline.predict.memory import beyond_kept
from paceline.predict.prediction import Predictor
from paceline.spec import RunSpec
from paceline.strategies import strategy
from paceline.systems.files import load_hardware
from paceline.systems.hardware import Calibration, Hardware, MemoryFit, StrategyOverhead

BASE, SLACK, DATA = 1e6, 0.25, 7e6


def hardware(*overheads: StrategyOverhead) -> Hardware:
    memory = tuple(
        MemoryFit(framework=name, base_bytes=BASE, slack=SLACK, residual=0.05)
        for name in ("torch", "tensorflow", "jax")
    )
    calibration = Calibration(
        at="2020-01-01", machine="a machine", frameworks={"torch": "2"}, memory=memory, overheads=overheads
    )
    return load_hardware("cpu-2-cores").model_copy(update={"calibration": calibration})


def spec_of(name: str, workload: str = "mlp", batch: int = 64, **fields: Any) -> RunSpec:
    return complete(RunSpec(workload=workload, strategy=name, global_batch=batch, steps=1, **{"workers": 2, **fields}))


def predicted(spec: RunSpec, *overheads: StrategyOverhead) -> tuple[float, ModelFacts]:
    facts = spec_facts(spec)
    return Predictor(hardware(*overheads), facts, 64, data_bytes=DATA).predict(spec).memory_bytes.value, facts


def test_a_server_has_no_samples_and_makes_no_passes() -> None:
    spec = spec_of("torch-ps-sync")
    found, facts = predicted(spec)
    worker, server = strategy("torch-ps-sync").footprint(spec, facts).groups
    passing = beyond_kept(facts, 32, {})
    by_worker = worker.held_bytes + passing + BASE + DATA
    by_worker += SLACK * (worker.gradient_bytes + worker.activation_bytes + passing)
    by_server = server.held_bytes + BASE + SLACK * server.gradient_bytes
    assert found == pytest.approx(max(by_worker, by_server))
    assert server.held_bytes > worker.held_bytes


@pytest.mark.parametrize(("workload", "beyond"), [("transformer", 0.0), ("mlp", 1.0)])
def test_buffers_of_the_backward_pass_take_the_place_of_freed_activations(workload: str, beyond: float) -> None:
    buffers = StrategyOverhead(
        strategy="torch-ddp", seconds_per_message=0.0, held_bytes=1000.0, held_per_parameter_byte=1.0
    )
    spec = spec_of("torch-ddp", workload)
    (plain, facts), (held, _) = predicted(spec), predicted(spec, buffers)
    worker = strategy("torch-ddp").footprint(spec, facts).groups[0]
    passes = worker.activation_bytes + beyond_kept(facts, 32, {})
    assert held - plain == pytest.approx(1000 + beyond * (facts.parameter_bytes - passes))


def test_buffers_of_parameters_that_are_gathered_come_on_top() -> None:
    gathered = StrategyOverhead(
        strategy="torch-fsdp", seconds_per_message=0.0, held_bytes=1000.0, held_per_parameter_byte=1.0
    )
    spec = spec_of("torch-fsdp", "transformer")
    (plain, facts), (held, _) = predicted(spec), predicted(spec, gathered)
    assert held - plain == pytest.approx(1000 + facts.parameter_bytes)


@pytest.mark.parametrize("name", ["torch-ddp", "torch-fsdp"])
def test_what_was_held_of_the_model_itself_grows_with_its_activations(name: str) -> None:
    spec = spec_of(name, "transformer")
    plain, facts = predicted(spec)
    known = StrategyOverhead(
        strategy=name, seconds_per_message=0.0, held_bytes=1000.0, held_per_parameter_byte=1.0,
        held_per_activation_byte={model_digest(facts): 0.5},
    )  # fmt: skip
    kept = strategy(name).footprint(spec, facts).groups[0].activation_bytes
    assert predicted(spec, known)[0] - plain == pytest.approx(1000 + facts.parameter_bytes + 0.5 * kept)
    (other, size), (without, _) = predicted(spec_of(name, "mlp"), known), predicted(spec_of(name, "mlp"))
    assert 1000 < other - without <= 1000 + size.parameter_bytes


@pytest.mark.parametrize(
    ("name", "fields", "samples"),
    [
        ("torch-tensor", {}, 64), ("keras-model-parallel", {"knobs": {"tensor": 2}}, 64),
        ("keras-model-parallel", {"knobs": {"tensor": 2}, "workers": 4}, 32),
        ("tf-dtensor", {"knobs": {"tensor": 2}}, 64),
    ],
)  # fmt: skip
def test_who_splits_layers_keeps_as_much_of_their_results_as_of_the_whole_model(
    name: str, fields: dict[str, Any], samples: int
) -> None:
    spec = spec_of(name, "transformer", **fields)
    found, facts = predicted(spec)
    worker, whole = strategy(name).footprint(spec, facts).groups[0], facts.activation_bytes * samples
    # What is there only for a moment is divided as the rest is.
    passing = beyond_kept(facts, samples, {}) * worker.activation_bytes / whole
    kept = worker.gradient_bytes + whole + passing
    assert worker.activation_bytes < whole
    assert found == pytest.approx(worker.held_bytes + passing + BASE + SLACK * kept + DATA)


def test_a_mesh_that_splits_no_layer_holds_what_replicas_do() -> None:
    spec = spec_of("tf-dtensor", "transformer", knobs={"tensor": 1})
    found, facts = predicted(spec)
    worker, passing = strategy("tf-dtensor").footprint(spec, facts).groups[0], beyond_kept(facts, 32, {})
    kept = worker.gradient_bytes + worker.activation_bytes + passing
    assert found == pytest.approx(worker.held_bytes + passing + BASE + SLACK * kept + DATA)
