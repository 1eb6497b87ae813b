"""Scripts as texts: whatever run they are for, they are formatted Python without Paceline and without loose ends."""

import ast
import math
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.contract.user_model_facts import UserModelFacts
from paceline.errors import ModelError, SpecError
from paceline.plan import Probe
from paceline.recommend.scripts import emit, scripts
from paceline.recommend.scripts.recipe_text import rate_lines
from paceline.spec import ModelFile, Optimizer, RunSpec
from paceline.strategies import strategies, strategy
from paceline.workloads.layers import Norm

RUFF = Path(sysconfig.get_path("scripts")) / "ruff"
WANTED = {
    "torch-single", "torch-ddp", "torch-zero", "torch-fsdp", "torch-pipeline", "torch-tensor",
    "torch-mesh", "tf-single", "tf-mirrored", "tf-multiworker", "jax-single", "jax-data",
    "jax-fsdp",
}  # fmt: skip
# Each is a run that a script must have other words for.
RUNS: dict[str, dict[str, Any]] = {
    "usual": {},
    "epochs": {"epochs": 3},
    "weak": {"local_batch": 32},
    "large": {"workload": "mnist-large"},
    "mlp": {"workload": "mlp", "options": {"depth": 6}},
    "mlp-flat": {"workload": "mlp", "dataset": "synthetic", "input_shape": [40], "classes": 3},
    "transformer": {"workload": "transformer", "global_batch": 16},
    "text": {"workload": "transformer", "dataset": "text", "global_batch": 16, "train_samples": 128},
    "deep": {"workload": "transformer", "options": {"depth": 24, "width": 64, "heads": 8}, "global_batch": 16},
    "sgd": {"optimizer": {"name": "sgd", "momentum": 0.9, "weight_decay": 0.0001}},
    "plain-sgd": {"optimizer": {"name": "sgd", "lr": 0.123456789}},
    "adagrad": {"optimizer": {"name": "adagrad"}},
    "long-adam": {"optimizer": {"lr": 0.000123456, "betas": [0.0, 0.987654], "eps": 1.5e-8, "weight_decay": 0.012345}},
    "adamw": {"optimizer": {"name": "adamw", "weight_decay": 0.0, "schedule": "step", "step_every": 4}},
    "cosine": {"epochs": 3, "optimizer": {"name": "adamw", "schedule": "cosine", "final_lr": 0.1, "warmup_steps": 5}},
    "warm": {"optimizer": {"name": "sgd", "lr": 0.1, "warmup_steps": 100}},
    "warm-momentum": {"optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9, "warmup_steps": 100}},
    "matrices": {"optimizer": {"name": "adamw", "weight_decay": 0.1, "weight_decay_on": "matrices"}},
    "sgd-matrices": {"optimizer": {"name": "sgd", "weight_decay": 0.1, "weight_decay_on": "matrices"}},
    "bf16": {"precision": "bf16"},
    "tf32": {"precision": "tf32", "device": "cuda"},
    "compiled": {"execution": "compiled"},
    "contiguous": {"memory_format": "contiguous"},
    "copies": {"dataset_copies": 3},
    "part": {"train_samples": 500},
    "mnist": {"dataset": "mnist"},
    "synthetic": {"input_shape": [3, 32, 32], "classes": 7},
    "four": {"workers": 4},
    "knobs": {},
    "own": {"model": "data, loss, optimizer"},
    "own-part": {"model": "data", "train_samples": 32},
    "own-decay": {"model": "data", "optimizer": {"name": "sgd", "weight_decay": 0.1}},
    "own-matrices": {
        "model": "data",
        "optimizer": {
            "name": "adagrad",
            "weight_decay": 0.1,
            "weight_decay_on": "matrices",
            "schedule": "step",
            "step_every": 4,
        },
    },
    "own-mnist": {"model": "", "dataset": "mnist-5k"},
    "own-synthetic": {"model": "", "input_shape": [3, 8, 8], "classes": 4},
    "own-cut": {"model": "data, stages, plan"},
}
# Runs of the strategy that takes layouts: every dimension and field that its script has words for.
SMALL = {"workload": "transformer", "global_batch": 64}
LAYOUTS: dict[str, dict[str, Any]] = {
    "copies": {**SMALL, "layout": "replicate=2,shard=2", "accumulation": 2, "clip": 1.0},
    "parts": {**SMALL, "layout": "shard=2,tensor=2", "recompute": "selective"},
    "stages": {**SMALL, "layout": "shard=2,pipeline=2", "accumulation": 2, "recompute": "full", "clip": 0.5},
    "all": {**SMALL, "layout": "replicate=2,shard=2,tensor=2,pipeline=2", "optimizer": {"name": "sgd"}},
    "v": {**SMALL, "layout": "tensor=2,pipeline=2", "knobs": {"schedule": "zbv"}, "clip": 1.0},
    "interleaved": {"workload": "mlp", "options": {"depth": 8}, "layout": "pipeline=2",
                    "knobs": {"schedule": "interleaved", "microbatches": 8}},
    "own": {"model": "data, loss, optimizer", "layout": "shard=2,pipeline=2", "recompute": "full"},
    "own-cut": {"model": "data, stages", "layout": "pipeline=2", "clip": 1.0, "optimizer": {"warmup_steps": 2}},
}  # fmt: skip
KNOBS: dict[str, dict[str, Any]] = {
    "torch-ddp": {
        "bucket_mb": 1.0,
        "accumulation": 4,
        "find_unused_parameters": True,
        "gradient_as_bucket_view": False,
    },
    "torch-zero": {"parameters_as_bucket_view": False, "find_unused_parameters": True},
    "torch-fsdp": {"wrap": "whole", "reshard_after_forward": False, "hsdp_replicas": 2},
    "torch-pipeline": {"schedule": "interleaved", "microbatches": 8},
    "torch-tensor": {"convolutions": "replicated"},
    "tf-multiworker": {"communication": "ring"},
}


def own_facts(spec: RunSpec) -> UserModelFacts:
    """As if the model had been looked at."""
    return UserModelFacts(str(strategy(spec.strategy).trains), 1000, 64, sequential=True)


def model_file(folder: Path, functions: str) -> ModelFile:
    path = folder / f"a model of {functions or 'few words'}.py"
    names = ["build", *(name.strip() for name in functions.split(",") if name)]
    path.write_text("".join(f"def {name}(*given):\n    pass\n\n\n" for name in names))
    return ModelFile.from_text(str(path))


def spec_of(name: str, run: str, folder: Path) -> RunSpec | None:
    """The run with this strategy; None where the strategy cannot do what it is about."""
    chosen, fields = strategy(name), dict(RUNS[run])
    if run == "knobs":
        if name not in KNOBS:
            return None
        fields |= {"knobs": KNOBS[name], "workers": 4, "workload": "mlp", "options": {"depth": 8}}
    if run == "contiguous" and chosen.framework != "torch":
        return None
    if fields.get("precision", "fp32") not in {*chosen.needs.precisions} & {*scripts()[name].precisions}:
        return None
    if fields.get("execution", "eager") not in {*chosen.needs.executions} & {*scripts()[name].executions}:
        return None
    if "model" in fields:
        fields["model"] = model_file(folder, fields["model"])
    batch = {} if "local_batch" in fields else {"global_batch": 64}
    length = {} if "epochs" in fields else {"steps": 12}
    workers = fields.pop("workers", 2)
    return RunSpec.parse(
        {"strategy": name, "workers": chosen.needs.fixed_workers or workers, **batch, **length, **fields}, "test"
    )


def laid_out(run: str, folder: Path) -> RunSpec:
    """A run with a layout."""
    fields = {"strategy": "torch-mesh", "global_batch": 64, "steps": 12, **LAYOUTS[run]}
    if "model" in fields:
        fields["model"] = model_file(folder, fields["model"])
    return RunSpec.parse(fields, "test")


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], str]:
    """Every script for every run that it can be for."""
    folder = tmp_path_factory.mktemp("models")
    specs = {(name, run): spec_of(name, run, folder) for name in scripts() for run in RUNS}
    specs |= {("torch-mesh", f"layout-{run}"): laid_out(run, folder) for run in LAYOUTS}
    return {key: emit(spec, probe=own_facts) for key, spec in specs.items() if spec is not None}


@pytest.fixture(scope="module")
def folder_of_scripts(texts: dict[tuple[str, str], str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scripts")
    for (name, run), text in texts.items():
        (folder / f"{name}-{run}.py").write_text(text)
    return folder


def ruff(folder: Path, *words: str) -> str:
    """What ruff finds, with nobody's settings."""
    ended = subprocess.run(
        [RUFF, *words, "--isolated", "--no-cache", folder], capture_output=True, text=True, check=False
    )
    return "" if ended.returncode == 0 else ended.stdout + ended.stderr


def imported(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module).partition(".")[0]


def test_there_is_a_script_for_what_people_start_with() -> None:
    assert set(scripts()) >= WANTED
    assert set(scripts()) <= set(strategies())


def test_every_script_is_formatted_as_ruff_formats_by_itself(folder_of_scripts: Path) -> None:
    assert ruff(folder_of_scripts, "format", "--diff") == ""


def test_no_script_has_unused_names_or_unsorted_imports(folder_of_scripts: Path) -> None:
    assert ruff(folder_of_scripts, "check", "--select", "E4,E7,E9,F,I,B,UP", "--target-version", "py310") == ""


def test_no_script_imports_paceline_or_another_framework_than_its_own(texts: dict[tuple[str, str], str]) -> None:
    for (name, _), text in texts.items():
        allowed = {"torch": {"torch"}, "tensorflow": {"tensorflow", "keras"}, "jax": {"jax"}}
        frameworks = set(imported(text)) & {"torch", "tensorflow", "keras", "jax", "optax", "paceline"}
        assert frameworks == allowed[str(strategy(name).framework)]


def test_every_script_tells_how_it_is_started_and_what_it_was_chosen_with(texts: dict[tuple[str, str], str]) -> None:
    for (name, _), text in texts.items():
        told = ast.get_docstring(ast.parse(text)) or ""
        words = " ".join(told.split())
        assert any(line.endswith(" train.py") and line.startswith("    ") for line in told.splitlines())
        assert f"Chosen with {name}, " in words
        assert " workers, " in words or " 1 worker, " in words


def test_the_run_stands_in_the_script(texts: dict[tuple[str, str], str]) -> None:
    weak, copies = texts["torch-ddp", "weak"], texts["jax-data", "copies"]
    assert "LOCAL_BATCH = 32" in weak and "GLOBAL_BATCH" not in weak
    assert "COPIES = 3" in copies
    assert "EPOCHS = 3" in texts["tf-mirrored", "epochs"]
    assert "bucket_cap_mb=1.0" in texts["torch-ddp", "knobs"]
    assert "ACCUMULATION = 4" in texts["torch-ddp", "knobs"]
    assert "torch.bfloat16" in texts["torch-fsdp", "bf16"]
    assert "autocast" not in texts["torch-fsdp", "bf16"]
    assert "torch.compile(" in texts["torch-single", "compiled"]
    assert "jit_compile=True" in texts["tf-single", "compiled"]
    assert "ScheduleInterleaved1F1B" in texts["torch-pipeline", "knobs"]
    assert "*(Block(64, heads=8) for _ in range(24))" in texts["torch-single", "deep"]


def test_functions_of_the_users_file_take_the_place_of_the_scripts_own(texts: dict[tuple[str, str], str]) -> None:
    whole, bare = texts["torch-ddp", "own"], texts["torch-ddp", "own-synthetic"]
    assert all(f"user_file.{name}(" in whole for name in ("build", "data", "loss", "optimizer"))
    assert "def make_optimizer" not in whole and "accuracy" not in whole
    assert "def make_optimizer" in bare and "accuracy" in bare and "user_file.loss" not in bare
    assert "user_file.stages(model" in texts["torch-pipeline", "own-cut"]
    assert "user_file.plan(model)" in texts["torch-tensor", "own-cut"]


def test_a_layout_stands_in_the_script(texts: dict[tuple[str, str], str]) -> None:
    whole, v, copies = (texts["torch-mesh", f"layout-{run}"] for run in ("all", "v", "copies"))
    assert 'LAYOUT = {"pipeline": 2, "replicate": 2, "shard": 2, "tensor": 2}' in whole
    assert "Schedule1F1B(" in whole and "MICROBATCHES = 4" in whole and "def split(" in whole
    assert "ScheduleZBVZeroBubble(" in v and "numbers = [place" in v
    assert "CLIP = 1.0" in copies and "ACCUMULATION = 2" in copies and "def split(" not in copies
    assert "user_file.stages(model, count)" in texts["torch-mesh", "layout-own-cut"]
    assert "--nproc-per-node 16" in whole


def test_what_the_file_imports_by_name_counts_as_its_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("from elsewhere import loss\n\n\ndef build(): ...\n\n\ndef data(): ...\n")
    spec = RunSpec(model=ModelFile.from_text(str(path)), global_batch=8, epochs=1)
    assert "user_file.loss(" in emit(spec, probe=own_facts)


def test_why_it_was_chosen_stands_in_its_docstring() -> None:
    text = emit(RunSpec(global_batch=8, epochs=1), why="One worker is fastest here.")
    assert "One worker is fastest here." in (ast.get_docstring(ast.parse(text)) or "")


def refused(probe: Probe = own_facts, **fields: Any) -> str:
    batch = {} if "local_batch" in fields else {"global_batch": 64}
    with pytest.raises((SpecError, ModelError)) as caught:
        emit(RunSpec.parse({**batch, "steps": 12, **fields}, "test"), probe=probe)
    return str(caught.value)


def test_a_strategy_without_a_script_is_told_with_those_that_have_one() -> None:
    said = refused(strategy="torch-downpour", workers=2)
    assert said == f"there is no script for torch-downpour; there are scripts for {', '.join(sorted(scripts()))}"


def test_a_misspelt_strategy_is_told_as_such() -> None:
    assert refused(strategy="torch-dpp") == "there is no strategy 'torch-dpp'; did you mean 'torch-dp' or 'torch-ddp'?"


def test_a_knob_that_the_script_cannot_set_is_refused() -> None:
    said = refused(strategy="torch-ddp", workers=2, knobs={"compression": "powersgd"})
    assert said == (
        "the script for torch-ddp cannot set compression; leave it out; it heeds bucket_mb, "
        "gradient_as_bucket_view, static_graph, find_unused_parameters, accumulation"
    )


def test_a_batch_that_does_not_divide_is_refused() -> None:
    said = refused(strategy="torch-ddp", workers=3)
    assert said == "global_batch 64 does not divide over 3 workers; use a multiple of 3"


def test_what_no_machine_can_run_is_refused_and_what_this_one_lacks_is_not() -> None:
    said = refused(strategy="torch-single", workers=2)
    assert said == "a script cannot be written: torch-single always has 1 worker; 2 were asked for"
    spec = RunSpec(strategy="torch-ddp", workers=64, global_batch=256, epochs=1, device="cuda")
    text = emit(spec)
    command = "torchrun --nnodes 8 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29500 train.py"
    assert f"\n    {command}\n" in text
    assert "Start it so on each of 8 machines with 8 GPUs" in text


def test_a_model_of_another_framework_is_refused(tmp_path: Path) -> None:
    said = refused(
        probe=lambda _spec: UserModelFacts("keras", 10, 64),
        strategy="torch-ddp",
        workers=2,
        model=model_file(tmp_path, "data"),
    )
    assert said.startswith("a model of data.py:build returns a Keras model, and torch-ddp trains a torch.nn.Module;")


def test_stages_that_only_paceline_finds_are_refused(tmp_path: Path) -> None:
    said = refused(
        probe=lambda _spec: UserModelFacts("torch", 10, 64, automatic_cuts=("stages", "plan")),
        strategy="torch-pipeline",
        workers=2,
        model=model_file(tmp_path, "data"),
    )
    assert said == (
        "a script cannot be written: only Paceline finds how to cut a model of data.py:build by itself; "
        "add a function stages to its file"
    )


def test_a_model_with_several_inputs_is_refused(tmp_path: Path) -> None:
    said = refused(
        probe=lambda _spec: UserModelFacts("torch", 10, 64, form="takes ids 8 int64, mask 8 bool and returns a dict"),
        strategy="torch-ddp",
        workers=2,
        model=model_file(tmp_path, "data"),
    )
    assert said == (
        "a script cannot be written: a model of data.py:build takes ids 8 int64, mask 8 bool and returns a dict, and "
        "scripts pass one tensor; train it with paceline run"
    )


def test_an_optimizer_without_a_script_is_refused() -> None:
    said = refused(strategy="torch-ddp", workers=2, optimizer={"name": "lbfgs"})
    assert said == "a script cannot be written for optimizer lbfgs; use adam, adamw, sgd or adagrad"


def test_what_only_paceline_sets_up_is_refused() -> None:
    said = refused(strategy="torch-ddp", workers=2, execution="graph", device="cuda")
    assert said == "a script cannot be written for execution graph; use eager or compiled"
    said = refused(strategy="torch-ddp", workers=2, device="cuda-slice")
    assert said == "a script cannot be written for device cuda-slice; use cpu or cuda"


def test_a_file_that_imports_everything_from_another_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("from elsewhere import *\n")
    said = refused(strategy="torch-ddp", workers=2, model=ModelFile.from_text(str(path)), dataset="mnist-5k")
    assert said.endswith("imports everything from another file (*); name what it imports, so that a script can use it")


class Unknown(Norm):
    """A kind of layer that no script has source for."""


@pytest.mark.parametrize("name", ["torch-single", "tf-single", "jax-single"])
def test_a_layer_that_a_script_cannot_write_is_refused_in_words(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("torch_text", "keras_text", "jax_text"):
        monkeypatch.setattr(f"paceline.recommend.scripts.{module}.Norm", Unknown)
    with pytest.raises(SpecError, match=r"there is no .* source for a Norm layer; use another workload"):
        emit(RunSpec(strategy=name, workload="transformer", global_batch=8, steps=1))


def test_the_recipe_stands_in_the_script_of_every_framework(texts: dict[tuple[str, str], str]) -> None:
    for name in ("torch-ddp", "tf-mirrored", "jax-data"):
        told = {
            run: " ".join((ast.get_docstring(ast.parse(texts[name, run])) or "").split())
            for run in ("cosine", "adamw", "matrices")
        }
        assert "adamw at rate 0.001, weight decay 0.01, schedule cosine to 0.1, 5 warm-up steps" in told["cosine"]
        assert "total = EPOCHS * (len(targets) // batch)" in texts[name, "cosine"]
        assert "factor = 0.1 + 0.45 * (1 + math.cos(math.pi * part))" in texts[name, "cosine"]
        assert "schedule step (0.1 every 4 steps)" in told["adamw"]
        assert "weight decay 0.1 of matrices" in told["matrices"]
        assert "factor" not in texts[name, "own"] and "factor" not in texts[name, "matrices"]


def test_the_rate_of_a_script_is_that_of_pacelines_run() -> None:
    """The words of all scripts, carried out."""
    for fields in (
        {"schedule": "cosine", "final_lr": 0.1, "warmup_steps": 5},
        {"schedule": "cosine"},
        {"schedule": "step", "step_every": 4, "step_factor": 0.3, "warmup_steps": 3},
        {"warmup_steps": 7},
    ):
        settings = Optimizer.model_validate(fields)
        names: dict[str, Any] = {"math": math}
        exec("def rate_factor(done, total):\n    " + "\n    ".join([*rate_lines(settings), "return factor"]), names)
        assert [names["rate_factor"](done, 20) for done in range(20)] == pytest.approx(settings.lr_factors(20))
