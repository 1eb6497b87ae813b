"""Models cut into stages and layers split over workers: every way gives the losses of one worker, and says when not."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contract.conftest import STEPS as SHARED_STEPS
from contract.conftest import WORKLOADS
from paceline.contract.context import spec_facts
from paceline.plan import PlannedRun, complete, refusal
from paceline.runs.launch import launch
from paceline.runs.probe import probe
from paceline.spec import ModelFile, RunSpec
from paceline.strategies import strategy
from paceline.systems import local_system

pytestmark = pytest.mark.torch
pytest.importorskip("torch", reason="PyTorch is not installed")

STEPS = 6
STAGED = ("torch-layers", "torch-pipeline")
SPLIT = ("torch-tensor",)
WHOLE_BYTES = 402_442 * 4

# Nested, with a layer that works in place after a cut could fall before it.
SEQUENCE = """
from torch import nn


def build():
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2)), nn.Flatten(),
        nn.Linear(128, 32), nn.ReLU(inplace=True), nn.Linear(32, 24), nn.Tanh(), nn.Linear(24, 10),
    )
"""
# No sequence: a residual, a buffer, and inputs that are flattened on the way.
BRANCHED = """
import torch
from torch import nn


class Head(nn.Module):
    def __init__(self, first):
        super().__init__()
        self.first = first

    def forward(self, x):
        return torch.relu(self.first(x.flatten(1)))


class Tail(nn.Module):
    def __init__(self, wide, narrow, last, scale):
        super().__init__()
        self.wide, self.narrow, self.last = wide, narrow, last
        self.register_buffer("scale", scale)

    def forward(self, x):
        return self.last(x + self.narrow(torch.tanh(self.wide(x)))) * self.scale


class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = Head(nn.Linear(192, 16))
        self.tail = Tail(nn.Linear(16, 32), nn.Linear(32, 16), nn.Linear(16, 10), torch.tensor(2.0))

    def forward(self, x):
        return self.tail(self.head(x))


def build():
    return Whole()


def stages(model, count):
    return [model.head, model.tail]


def plan(model):
    return {"tail.wide": "columns", "tail.narrow": "rows"}


def optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=0.01)
"""


def own_spec(file: Path, **fields: Any) -> RunSpec:
    values = {"model": ModelFile.from_text(str(file)), "input_shape": [3, 8, 8], "classes": 10, "global_batch": 16,
              "train_samples": 128, "steps": STEPS, "workers": 2}  # fmt: skip
    return complete(RunSpec.parse({**values, **fields}, "own"))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    for name, text in (("sequence", SEQUENCE), ("branched", BRANCHED)):
        (folder / f"{name}.py").write_text(text)
    return {name: folder / f"{name}.py" for name in ("sequence", "branched")}


def assert_follows_one_worker(trained: Any, spec: RunSpec) -> None:
    spread, single = trained.again(spec), trained.again(strategy(spec.strategy).testing.reference(spec))
    np.testing.assert_allclose(spread.losses, single.losses, rtol=1e-4)
    assert spread.weights.keys() == single.weights.keys()
    for name, array in single.weights.items():
        np.testing.assert_allclose(spread.weights[name], array, atol=2e-4, err_msg=name)
    last, expected = spread.record.epochs[-1], single.record.epochs[-1]
    assert last.test_loss == pytest.approx(expected.test_loss, rel=1e-4)
    assert last.test_accuracy == pytest.approx(expected.test_accuracy, abs=0.01)


def spec_of(workload: str, name: str, workers: int = 2, **fields: Any) -> RunSpec:
    values = {"steps": STEPS, **WORKLOADS[workload], "strategy": name, "workers": workers, **fields}
    return complete(RunSpec.parse(values, "contract"))


@pytest.mark.parametrize(("workload", "knobs"), [
    ("mnist-small", {"schedule": "1f1b"}), ("mnist-small", {"schedule": "interleaved"}),
    ("mnist-small", {"microbatches": 2}), ("mnist-small", {"balance": "measured"}),
    ("transformer", {"schedule": "interleaved"}), ("transformer", {"microbatches": 8, "schedule": "1f1b"}),
    pytest.param("mnist-small", {"microbatches": 8, "schedule": "1f1b"}, marks=pytest.mark.soak),
    *(pytest.param("transformer", knobs, marks=pytest.mark.soak)
      for knobs in ({"schedule": "1f1b"}, {"microbatches": 2}, {"balance": "measured"})),
], ids=str)  # fmt: skip
def test_every_schedule_and_cut_gives_the_same(workload: str, knobs: dict[str, Any], trained: Any) -> None:
    assert_follows_one_worker(trained, spec_of(workload, "torch-pipeline", knobs=knobs))


@pytest.mark.parametrize("name", [*STAGED, *SPLIT])
def test_it_gives_the_same_in_the_contiguous_memory_format(name: str, trained: Any) -> None:
    assert_follows_one_worker(trained, spec_of("mnist-small", name, memory_format="contiguous"))


def test_convolutions_can_stay_whole(trained: Any) -> None:
    assert_follows_one_worker(trained, spec_of("mnist-small", "torch-tensor", knobs={"convolutions": "replicated"}))


@pytest.mark.parametrize(
    "way", [{"strategy": "torch-tensor"}, {"strategy": "torch-mesh", "layout": "shard=2,tensor=2"}]
)
def test_split_convolutions_in_a_row_gather_channels_in_between(way: dict[str, Any], trained: Any) -> None:
    small = {"workload": "mnist-large", "input_shape": [1, 8, 8], "classes": 10, "dataset": "synthetic"}
    spec = RunSpec.parse({**small, "global_batch": 8, "train_samples": 32, "steps": 3, "workers": 4,
                          **way}, "large")  # fmt: skip
    assert_follows_one_worker(trained, complete(spec))


@pytest.mark.parametrize("name", ["torch-pipeline", "torch-tensor"])
def test_momentum_is_kept_for_each_part(name: str, trained: Any) -> None:
    momentum = {"name": "sgd", "lr": 0.05, "momentum": 0.9}
    assert_follows_one_worker(trained, spec_of("transformer", name, optimizer=momentum))


@pytest.mark.parametrize("way", [
    *({"strategy": name} for name in (*STAGED, *SPLIT)),
    *({"strategy": "torch-mesh", "layout": layout} for layout in ("tensor=2", "pipeline=2")),
], ids=lambda way: " ".join(way.values()))  # fmt: skip
@pytest.mark.parametrize("model", ["sequence", "branched"])
def test_a_model_of_the_users_is_cut_by_itself_or_as_its_file_says(
    model: str, way: dict[str, str], models: dict[str, Path], trained: Any
) -> None:
    assert_follows_one_worker(trained, own_spec(models[model], **way))


def test_a_sequence_of_the_users_can_be_cut_by_measured_time(models: dict[str, Path], trained: Any) -> None:
    knobs = {"schedule": "interleaved", "balance": "measured"}
    assert_follows_one_worker(trained, own_spec(models["sequence"], strategy="torch-pipeline", knobs=knobs))


@pytest.mark.parametrize(("workload", "name"), [
    *(("mnist-small", name) for name in (*STAGED, *SPLIT)), *(("transformer", name) for name in SPLIT),
    *(pytest.param("transformer", name, marks=pytest.mark.soak) for name in STAGED),
])  # fmt: skip
def test_four_workers_hold_exactly_what_the_footprint_says(workload: str, name: str, trained: Any) -> None:
    record = trained.again(spec_of(workload, name, workers=4, steps=SHARED_STEPS)).record
    groups = strategy(name).footprint(record.spec, spec_facts(record.spec)).groups
    promised = [(group.parameter_bytes, group.optimizer_bytes) for group in groups for _ in range(group.ranks)]
    held = [rank.details["held_bytes"] for rank in record.ranks]
    assert [(part["parameters"], part["optimizer"]) for part in held] == promised


@pytest.mark.parametrize("name", ["torch-layers", "torch-pipeline"])
def test_stages_share_the_parameters_among_them(name: str, trained: Any) -> None:
    ranks = trained.again(spec_of("mnist-small", name)).record.ranks
    held = [rank.details["held_bytes"]["parameters"] for rank in ranks]
    assert sum(held) == WHOLE_BYTES
    assert max(held) < WHOLE_BYTES
    assert [layer for rank in ranks for layer in rank.details["layers"]][:2] == ["0_conv", "1_maxpool"]


@pytest.mark.parametrize("name", SPLIT)
def test_what_is_not_split_stays_the_same_on_every_worker(name: str, trained: Any) -> None:
    ranks = trained.again(spec_of("transformer", name, workers=4, steps=SHARED_STEPS)).record.ranks
    assert [rank.details["replicated_drift"] for rank in ranks] == [0.0] * 4
    whole = spec_facts(spec_of("transformer", name)).parameter_bytes
    assert all(rank.details["held_bytes"]["parameters"] < 0.7 * whole for rank in ranks)


@pytest.mark.parametrize(
    ("workload", "name", "workers", "fields", "words"),
    [
        ("mnist-small", "torch-layers", 6, {}, "has 5 layers to cut between and 6 stages were asked for"),
        ("mnist-small", "torch-pipeline", 4, {"knobs": {"schedule": "interleaved"}}, "and 8 stages were asked for"),
        ("transformer", "torch-pipeline", 4, {"knobs": {"schedule": "interleaved"}}, "and 8 stages were asked for"),
        ("mnist-small", "torch-pipeline", 2, {"knobs": {"microbatches": 7}}, "64 does not divide into 7 micro-batches"),
        ("mnist-small", "torch-pipeline", 4, {"knobs": {"schedule": "1f1b", "microbatches": 2}}, "raise knob micro"),
        ("mnist-small", "torch-pipeline", 1, {"knobs": {"schedule": "interleaved"}}, "needs at least 2 workers"),
        ("mnist-small", "torch-pipeline", 2, {"knobs": {"schedule": "interleaved", "microbatches": 1}}, None),
        ("transformer", "torch-tensor", 8, {}, "4 heads do not divide over 8 workers"),
        ("mnist-small", "torch-tensor", 7, {}, "nothing in mnist-small divides over 7 workers"),
        ("mnist-small", "torch-tensor", 2, {"optimizer": {"name": "lbfgs"}}, "L-BFGS needs them in one place"),
        ("mnist-small", "torch-layers", 2, {"optimizer": {"name": "lbfgs"}}, "L-BFGS needs them in one place"),
        ("mnist-small", "torch-layers", 2, {"execution": "compiled"}, "does not run with execution compiled"),
    ],
)
def test_what_cannot_be_cut_is_refused_in_words(
    workload: str, name: str, workers: int, fields: dict[str, Any], words: str | None
) -> None:
    reason = refusal(spec_of(workload, name, workers, **fields), local_system(), probe)
    assert reason is None if words is None else words in str(reason)


def test_a_model_that_is_no_sequence_must_say_how_to_cut_it(tmp_path: Path) -> None:
    file = tmp_path / "silent.py"
    file.write_text(BRANCHED.replace("def stages", "def other").replace("def plan", "def another"))
    for name, function in (("torch-pipeline", "stages"), ("torch-tensor", "plan")):
        reason = refusal(own_spec(file, strategy=name), local_system(), probe)
        assert f"add a function {function} to silent.py" in str(reason)


STAGES, PLAN = "return [model.head, model.tail]", 'return {"tail.wide": "columns", "tail.narrow": "rows"}'
WRONG_STAGES = {
    "stages(model, 2) of wrong.py:build must return a list of modules, and returned Whole": "return model",
    "must return a list of modules, and returned a list of int, str": "return [1, 'two']",
    "stages(model, 2) of wrong.py:build returned 1 modules; return 2": "return [model]",
    "fails with AttributeError": "return model.body",
    "the first stage has no parameters": "return [nn.Flatten(), model]",
    "is in none of the 2 stages": "return [model.head, model.tail.last]",
    "is in stages 0 and 1; layers that share it must be in one": "return [model.head, model]",
    "has weight, which is no part of the model": "return [nn.Linear(192, 16), model.tail]",
    "stage 0 of wrong.py:build does not take what comes before it": "return [model.tail, model.head]",
    "do not give what the model gives": "return [nn.Sequential(model.head, nn.Tanh()), model.tail]",
    "its first dimension must be the samples": "return [nn.Sequential(model.head, nn.Flatten(0)), model.tail]",
}
WRONG_PLANS = {
    'must return {"layer name": "columns" or "rows"}, and returned []': "return []",
    "gives 'diagonal' for tail.wide": 'return {"tail.wide": "diagonal"}',
    "names 'tail.wider', which is no layer; dense layers of the model are: head.first, tail.wide": (
        'return {"tail.wider": "rows"}'
    ),
    "names 'tail', which is Tail": 'return {"tail": "rows"}',
    "fails with KeyError": 'raise KeyError("x")',
    "split as planned, wrong.py:build": 'return {"tail.last": "columns"}',
}


def reason_of(trained: Any, spec: RunSpec) -> str:
    """How a run ends that the plan could not foresee."""
    record = launch(PlannedRun(spec, 0), "wrong", local_system(), lambda _event: None, launcher=trained.launcher(spec))
    assert not record.ok
    return str(record.reason)


@pytest.mark.parametrize("words", WRONG_STAGES)
def test_wrong_stages_are_named(words: str, tmp_path: Path, trained: Any) -> None:
    file = tmp_path / "wrong.py"
    file.write_text(BRANCHED.replace(STAGES, WRONG_STAGES[words]))
    assert words in reason_of(trained, own_spec(file, strategy="torch-layers"))


@pytest.mark.parametrize("words", WRONG_PLANS)
def test_wrong_plans_are_named(words: str, tmp_path: Path, trained: Any) -> None:
    file = tmp_path / "wrong.py"
    file.write_text(BRANCHED.replace(PLAN, WRONG_PLANS[words]))
    assert words in reason_of(trained, own_spec(file, strategy="torch-tensor"))


def test_features_that_do_not_divide_are_named(tmp_path: Path, trained: Any) -> None:
    file = tmp_path / "odd.py"
    file.write_text(BRANCHED.replace("16, 32", "16, 31").replace("32, 16", "31, 16"))
    reason = reason_of(trained, own_spec(file, strategy="torch-tensor"))
    assert "tail.wide has 31 features to split by columns, which do not divide over 2 workers" in reason


def test_a_sequence_with_too_few_layers_says_so(models: dict[str, Path], tmp_path: Path, trained: Any) -> None:
    file = tmp_path / "short.py"
    file.write_text(
        "from torch import nn\n\n\ndef build():\n    return nn.Sequential(nn.Flatten(), nn.Linear(192, 10))"
    )
    staged = reason_of(trained, own_spec(file, strategy="torch-layers"))
    assert "short.py:build has 1 layers to cut between and 2 stages were asked for" in staged
    split = reason_of(trained, own_spec(file, strategy="torch-tensor"))
    assert "has no two dense layers in a row whose features divide over 2 workers" in split
