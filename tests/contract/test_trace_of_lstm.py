"""A recurrent layer is one call on GPUs, of an LSTM also on cores, and one operation of a traced step."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from paceline.calibrate.torch_gauge import operation_timings  # noqa: E402
from paceline.contract.trace import Trace  # noqa: E402
from paceline.costs.operations import Operation, recurrent  # noqa: E402
from paceline.plan import complete  # noqa: E402
from paceline.predict.operations import OperationTimer  # noqa: E402
from paceline.runs.trace import traced, traced_all  # noqa: E402
from paceline.spec import ModelFile, RunSpec  # noqa: E402
from paceline.systems.files import load_hardware  # noqa: E402
from paceline.systems.gpu_memory import GpuMemory  # noqa: E402

MODELS = """
from torch import nn

class Recurrent(nn.Module):
    def __init__(self, kind, **settings):
        super().__init__()
        self.cells = kind(16, 24, num_layers=2, batch_first=True, **settings)
        self.head = nn.Linear(settings.get("proj_size", 24) * (1 + settings.get("bidirectional", 0)), 10)
    def forward(self, x):
        return self.head(self.cells(x)[0][:, -1])

class LastState(Recurrent):
    def forward(self, x):
        return self.head(self.cells(x)[1][0][-1])

def lstm(): return Recurrent(nn.LSTM)
def both_ways(): return Recurrent(nn.LSTM, bidirectional=True, dropout=0.5)
def last_state(): return LastState(nn.LSTM)
def projected(): return LastState(nn.LSTM, proj_size=12)
def gru(): return Recurrent(nn.GRU)
def plain(): return Recurrent(nn.RNN, nonlinearity="relu")
"""
LENGTH, SAMPLES, INPUTS, WIDTH = 12, 8, 16, 24
A_GPU, CORES = GpuMemory(), GpuMemory(fuses_recurrent=False)


def traced_model(folder: Path, function: str, device: GpuMemory = A_GPU, **fields: Any) -> Trace:
    return traced(spec_of(folder, function, **fields), gpu=device)


def spec_of(folder: Path, function: str, **fields: Any) -> RunSpec:
    (folder / "models.py").write_text(MODELS)
    model = ModelFile.from_text(f"{folder / 'models.py'}:{function}")
    return complete(
        RunSpec.parse(
            {"model": model.model_dump(), "dataset": "synthetic", "input_shape": (LENGTH, INPUTS), "classes": 10,
             "train_samples": 16, "global_batch": SAMPLES, "steps": 1, "device": "cuda", **fields},
            "a recurrent model",
        )
    )  # fmt: skip


def operations_of(trace: Trace) -> list[Operation]:
    return [each for layer in trace.operations.layers for each in (*layer.forward, *layer.backward)]


@pytest.mark.parametrize(("function", "directions"), [("lstm", 1), ("both_ways", 2), ("last_state", 1)])
def test_a_layer_is_one_operation_of_each_pass(tmp_path: Path, function: str, directions: int) -> None:
    layers = [each for each in operations_of(traced_model(tmp_path, function)) if each.kind == "recurrent"]
    shapes = [(LENGTH, SAMPLES, inputs, WIDTH, directions) for inputs in (INPUTS, WIDTH * directions)]
    assert Counter((each.shape, each.backward) for each in layers) == Counter(
        {(shape, backward): 1 for shape in shapes for backward in (False, True)}
    )


def test_under_autocast_it_is_computed_in_half_precision(tmp_path: Path) -> None:
    layers = [
        each for each in operations_of(traced_model(tmp_path, "lstm", precision="bf16")) if each.kind == "recurrent"
    ]
    assert {each.numbers for each in layers} == {"bf16"}


@pytest.mark.parametrize(("function", "gates"), [("gru", 3), ("plain", 1)])
def test_on_a_gpu_layers_of_other_cells_are_one_operation_too(tmp_path: Path, function: str, gates: int) -> None:
    layers = [each for each in operations_of(traced_model(tmp_path, function)) if each.kind == "recurrent"]
    products = 2 * LENGTH * SAMPLES * WIDTH * gates
    # Back, gradients of inputs and of weights.
    assert sorted(each.flops for each in layers) == sorted(
        passes * products * (inputs + WIDTH) for inputs in (INPUTS, WIDTH) for passes in (1, 2)
    )


def test_layers_are_repeated_by_their_shapes_where_calls_are_kept(tmp_path: Path) -> None:
    (trace,) = traced_all([spec_of(tmp_path, "lstm")], A_GPU, keeps_calls=True)
    assert isinstance(trace, Trace)
    operations = operations_of(trace)
    assert not [each for each in operations if each.kind == "recurrent" and each.call]
    assert [each for each in operations if each.kind == "product" and each.call]


@pytest.mark.parametrize("function", ["gru", "projected"])
def test_what_cores_run_step_by_step_is_traced_step_by_step(tmp_path: Path, function: str) -> None:
    operations = operations_of(traced_model(tmp_path, function, CORES))
    assert not [each for each in operations if each.kind == "recurrent"]
    assert sum(each.kind == "product" for each in operations) > LENGTH


def test_gradients_of_all_weights_are_held(tmp_path: Path) -> None:
    weights = sum(parameter.numel() for parameter in torch.nn.LSTM(INPUTS, WIDTH, num_layers=2).parameters())
    held = sum(layer.gradient_bytes for layer in traced_model(tmp_path, "lstm").memory.layers)
    assert held >= 4 * (weights + 10 * WIDTH + 10)


def test_a_timed_layer_decides_what_others_take() -> None:
    shapes = [(8, 4, 32, 32, 1), (16, 8, 32, 64, 1)]
    timed = operation_timings([recurrent("fp32", shape, backward=back) for shape in shapes for back in (False, True)])
    assert len(timed) == 4 and all(row.seconds > 0 for row in timed)
    # Each position waits for the one before.
    timer = OperationTimer(load_hardware("h100-nvlink"))
    short, long = (timer.timed(recurrent("bf16", (length, 4, 32, 32, 1))).seconds for length in (8, 800))
    assert long > 50 * short
