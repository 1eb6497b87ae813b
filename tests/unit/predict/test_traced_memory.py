"""Predicted peaks on GPUs: traced where PyTorch is, counted with a reason where it is not, and with room to spare."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from paceline.contract.context import spec_facts
from paceline.contract.trace import Trace
from paceline.costs.operations import LayerOperations, Operation, StepOperations
from paceline.costs.step_memory import LayerMemory, StepMemory
from paceline.plan import complete
from paceline.predict import traced_memory
from paceline.predict.estimate import Estimate
from paceline.predict.memory import MemoryNeed
from paceline.predict.prediction import Prediction, Predictor
from paceline.spec import RunSpec
from paceline.systems.files import load_hardware
from paceline.systems.gpu_memory import GpuMemory

PER_SAMPLE = 1e6


def trace_of(step: RunSpec, numbers: str = "bf16") -> Trace:
    names = [layer.name for layer in spec_facts(step).layers]
    kept = PER_SAMPLE * step.samples_per_step
    product = Operation("convolution", numbers, (1,) * 9, 1, 1)  # type: ignore[arg-type]
    asked = tuple(LayerOperations(name, (product,), ()) for name in (*names, "loss"))
    layers = tuple(LayerMemory(name, 0, 0, kept, kept, kept) for name in (*names, "loss"))
    return Trace(StepOperations(asked, ()), StepMemory(step.samples_per_step, layers))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[RunSpec]:
    """Steps that a trace was asked for, of which each is answered."""
    steps: list[RunSpec] = []

    def answer(wanted: Sequence[RunSpec], _gpu: GpuMemory) -> list[Trace | str]:
        steps.extend(wanted)
        return [trace_of(step) for step in wanted]

    monkeypatch.setattr(traced_memory, "can_trace", lambda: True)
    monkeypatch.setattr(traced_memory, "traced_all", answer)
    return steps


def predict(system: str = "h200-nvlink", **fields: Any) -> Prediction:
    usual = {"workload": "mlp", "strategy": "torch-single", "global_batch": 64, "steps": 1, "device": "cuda"}
    spec = complete(RunSpec(**{**usual, **fields}))
    return Predictor(load_hardware(system), spec_facts(spec), 64).predict(spec)


def test_two_steps_stand_for_all_batches(asked: list[RunSpec]) -> None:
    spec = complete(RunSpec(workload="mlp", strategy="torch-single", global_batch=8, steps=1, device="cuda"))
    predictor = Predictor(load_hardware("h200-nvlink"), spec_facts(spec), 64)
    peaks = []
    for batch in (8, 100, 4096):
        found = predictor.predict(spec.model_copy(update={"global_batch": batch})).memory
        assert found.method == "traced" and found.reason is None
        peaks.append(found.peak_bytes.value)
    assert len(asked) == 2
    layers = len(spec_facts(spec).layers) + 1
    assert peaks[2] - peaks[1] == pytest.approx((4096 - 100) * layers * PER_SAMPLE)


def test_interval_is_narrow_and_wider_where_kernels_are_not_known(
    asked: list[RunSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    def width(prediction: Prediction) -> float:
        return prediction.memory_bytes.high / prediction.memory_bytes.value - 1

    assert asked == []
    assert width(predict()) < 0.02
    assert width(predict(execution="compiled")) > 0.05
    monkeypatch.setattr(traced_memory, "traced_all", lambda steps, _gpu: [trace_of(step, "fp32") for step in steps])
    assert width(predict(precision="fp32")) > 0.3


@pytest.mark.parametrize(
    ("reason", "installed"), [("PyTorch is not installed here", False), ("its step needs real numbers", True)]
)
def test_what_cannot_be_traced_is_counted_and_says_why(
    monkeypatch: pytest.MonkeyPatch, reason: str, installed: bool
) -> None:
    monkeypatch.setattr(traced_memory, "can_trace", lambda: installed)
    monkeypatch.setattr(traced_memory, "traced_all", lambda steps, _gpu: [reason for _ in steps])
    found = predict().memory
    assert (found.method, found.reason) == ("counted", reason)


def test_others_are_counted_without_a_word(asked: list[RunSpec]) -> None:
    jax = predict(strategy="jax-single").memory
    assert (jax.method, jax.reason) == ("counted", None)
    cores = predict("cpu-2-cores", device="cpu").memory
    assert (cores.method, cores.reason) == ("counted", None)
    assert asked == []


def test_half_precision_is_counted_as_half() -> None:
    whole, half = (predict(strategy="jax-single", precision=name, global_batch=4096) for name in ("fp32", "bf16"))
    assert half.memory_bytes.value < whole.memory_bytes.value


def test_a_peak_must_leave_room_for_drivers_and_fragments() -> None:
    need = MemoryNeed(Estimate.around(97.0, 0.01), "traced", margin=0.02, reserved_bytes=1.0)
    assert need.most_that_fits(100) == pytest.approx(99 / 1.02)
    assert need.fits(100) and not MemoryNeed(need.peak_bytes, "traced", margin=0.02, reserved_bytes=2.0).fits(100)


def test_a_recorded_graph_has_workspaces_of_its_own(asked: list[RunSpec], monkeypatch: pytest.MonkeyPatch) -> None:
    def with_workspace(steps: Sequence[RunSpec], _gpu: GpuMemory) -> list[Trace | str]:
        found = [trace_of(step) for step in steps]
        return [replace(trace, memory=replace(trace.memory, workspace_bytes=5)) for trace in found]

    monkeypatch.setattr(traced_memory, "traced_all", with_workspace)
    eager, graph = predict().memory_bytes.value, predict(execution="graph").memory_bytes.value
    assert graph - eager == pytest.approx(5)
