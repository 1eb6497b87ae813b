"""Parameters that are not trained: no gradient of them is sent and no optimizer state held, in runs and predictions."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from integration.test_footprints_are_true import HEADER_BYTES, ROOM_FOR_HEADERS, WORKERS, namespace  # noqa: F401
from paceline.contract.trace import Trace
from paceline.plan import PlannedRun, complete
from paceline.runs.launch import launch
from paceline.runs.probe import probe
from paceline.runs.trace import one_step, traced_all
from paceline.spec import ModelFile, RunSpec
from paceline.strategies import strategy
from paceline.systems import local_system
from paceline.systems.gpu_memory import GpuMemory

pytestmark = pytest.mark.torch
pytest.importorskip("torch", reason="PyTorch is not installed")

FILE = Path(__file__).with_name("frozen_base.py")
WIDTH, RANK, CLASSES = 256, 4, 10
TRAINED = 2 * (WIDTH * RANK + 2 * WIDTH * RANK) + WIDTH * CLASSES + CLASSES
FROZEN = (WIDTH * WIDTH + WIDTH) + (WIDTH * 2 * WIDTH + 2 * WIDTH) + (2 * WIDTH * WIDTH + WIDTH)
TRAINED_ARRAYS = 6
NAMES = ("torch-ddp", "torch-fsdp", "torch-zero", "torch-local-sgd", "torch-ps-sync")


def spec_of(name: str, **fields: Any) -> RunSpec:
    values = {"strategy": name, "workers": WORKERS, "global_batch": 64, "steps": 2,
              "model": ModelFile.from_text(f"{FILE}:build"), **fields}  # fmt: skip
    return complete(RunSpec.model_validate(values))


def facts_of(spec: RunSpec) -> Any:
    model = probe(spec).model
    assert model is not None
    return model


def test_the_probe_tells_what_is_trained_from_what_is_held() -> None:
    model = facts_of(spec_of("torch-ddp"))
    assert (model.parameters, model.unfrozen.parameters) == (TRAINED, TRAINED + FROZEN)
    assert probe(spec_of("torch-ddp")).parameters == TRAINED
    embed, first, down, *_ = model.layers
    # Nothing goes back through a frozen layer before the first that is trained; behind it, only to what it was given.
    assert model.backward_flops < 2 * model.forward_flops - 2 * embed.forward_flops
    assert (embed.parameters, first.parameters, down.parameters) == (0, 0, WIDTH * RANK)


@pytest.fixture(scope="module")
def carried(namespace: str) -> dict[str, Any]:  # noqa: F811
    words = [f"{name}:model={ModelFile.from_text(f'{FILE}:build').model_dump_json()}" for name in NAMES]
    script = Path(__file__).with_name("link_bytes.py")
    command = ["ip", "netns", "exec", namespace, sys.executable, str(script), str(WORKERS), *words]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=900)
    return {word.partition(":")[0]: seen for word, seen in json.loads(ended.stdout.strip().splitlines()[-1]).items()}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", NAMES)
def test_what_is_sent_is_what_is_trained(name: str, carried: dict[str, Any]) -> None:
    spec = spec_of(name)
    promised = strategy(name).footprint(spec, facts_of(spec)).sent_bytes
    assert isinstance(carried[name], float), carried[name]
    assert carried[name] == pytest.approx(promised, rel=ROOM_FOR_HEADERS["torch"], abs=HEADER_BYTES)


def test_gradients_alone_of_what_is_trained_go_around() -> None:
    spec = spec_of("torch-ddp")
    # A ring of two sends each byte once from each of its ranks.
    assert strategy("torch-ddp").footprint(spec, facts_of(spec)).sent_bytes == WORKERS * 4 * TRAINED


@pytest.mark.parametrize("name", ["torch-single", "torch-ddp", "torch-fsdp", "torch-zero"])
def test_what_is_held_is_what_was_promised(name: str) -> None:
    workers = strategy(name).needs.fixed_workers or WORKERS
    spec = spec_of(name, workers=workers)
    record = launch(PlannedRun(spec, 0), "frozen", local_system(), lambda _event: None)
    assert record.ok, record.reason
    held = [rank.details["held_bytes"] for rank in record.ranks]
    footprint = strategy(name).footprint(spec, facts_of(spec))
    ranks = [group for group in footprint.groups for _ in range(group.ranks)]
    assert [rank["parameters"] for rank in held] == [group.parameter_bytes for group in ranks]
    assert [rank["optimizer"] for rank in held] == [group.optimizer_bytes for group in ranks]
    # Adam has two numbers for each that is trained and a counter for each array; FSDP counts on every rank.
    counters = TRAINED_ARRAYS * (workers if name in ("torch-ddp", "torch-fsdp") else 1)
    copies = workers if name == "torch-ddp" else 1
    assert sum(rank["optimizer"] for rank in held) == 2 * 4 * TRAINED * copies + 4 * counters


def test_a_frozen_weight_trains_as_on_one_worker_and_never_moves(tmp_path: Path) -> None:
    import numpy as np

    weights = {}
    for name in ("torch-single", "torch-fsdp"):
        spec = spec_of(name, workers=strategy(name).needs.fixed_workers or WORKERS, steps=4)
        to = tmp_path / f"{name}.npz"
        record = launch(PlannedRun(spec, 0), "frozen", local_system(), lambda _event: None, weights_to=to)
        assert record.ok, record.reason
        weights[name] = dict(np.load(to))
    for name, array in weights["torch-single"].items():
        np.testing.assert_allclose(weights["torch-fsdp"][name], array, atol=1e-4, err_msg=name)
    import torch

    torch.manual_seed(0)
    sys.path.insert(0, str(FILE.parent))
    import frozen_base

    start = frozen_base.build().state_dict()
    moved = {name for name, array in weights["torch-single"].items() if not np.array_equal(array, start[name].numpy())}
    assert moved == {name for name in start if ".base." not in name and not name.startswith("0.")}


def test_a_traced_step_has_gradients_and_state_of_what_is_trained() -> None:
    (trace,) = traced_all([one_step(spec_of("torch-single", workers=1))], GpuMemory())
    assert isinstance(trace, Trace), trace
    memory = trace.memory
    # The allocator hands out blocks of 512 bytes.
    blocks = 512 * 3 * TRAINED_ARRAYS
    assert memory.gradient_bytes == pytest.approx(4 * TRAINED, abs=blocks)
    assert memory.state_bytes == pytest.approx(2 * 4 * TRAINED, abs=blocks)
    assert memory.parameter_bytes == pytest.approx(4 * (TRAINED + FROZEN), abs=3 * blocks)


@pytest.mark.parametrize("name", ["torch-single", "torch-ddp", "torch-fsdp"])
def test_predicted_memory_counts_what_is_frozen_once_and_no_gradients_of_it(name: str) -> None:
    workers = strategy(name).needs.fixed_workers or WORKERS
    spec = spec_of(name, workers=workers, device="cuda")
    model = facts_of(spec_of(name, workers=workers))
    footprint = strategy(name).footprint(spec, model)
    (trace,) = traced_all([one_step(spec_of(name, workers=workers), 32)], GpuMemory())
    assert isinstance(trace, Trace), trace
    frozen = max(strategy(name).traits.peaks.of(spec, model, footprint, trace.memory))
    whole = model.unfrozen
    trained = max(strategy(name).traits.peaks.of(spec, whole, strategy(name).footprint(spec, whole), trace.memory))
    shares = workers if name == "torch-fsdp" else 1
    # Two numbers of Adam's state for each frozen parameter, at least, are not there.
    assert trained - frozen >= 2 * 4 * FROZEN / shares
