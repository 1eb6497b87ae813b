"""Emitted scripts run as their docstrings say, from the weights of Paceline's run, and lose what it loses.

Nothing of Paceline can be imported while they run. Of each framework one script is started by the real commands; for
the others the same commands find programs that need not import the framework again.
"""

import ast
import os
import re
import subprocess
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from interpreters import Interpreter
from paceline.contract.context import spec_layers
from paceline.plan import PlannedRun, complete
from paceline.recommend.scripts import emit, scripts
from paceline.recommend.scripts.jax_text import layer_names
from paceline.recommend.scripts.torch_text import module_names
from paceline.runs.launch import launch
from paceline.runs.launchers.local import LocalLauncher
from paceline.runs.starters import ForkServers
from paceline.spec import ModelFile, RunSpec
from paceline.strategies import strategy
from paceline.systems import local_system
from paceline.workloads.base import Weights, initial_weights, named_layers
from paceline.workloads.layers import Block

pytestmark = pytest.mark.usefixtures("probing_without_imports")

STEPS = 12
PATIENCE_SECONDS = 240.0
TOLERANCE = 1e-4
# Each strategy has one built-in model at least, and each framework both; the rest is left to the long tests.
WITH_TRANSFORMER = ("torch-tensor", "tf-single", "jax-single")
MORE_WITH_TRANSFORMER = ("torch-single", "torch-fsdp", "jax-data")
WITH_LAYOUTS = ("torch-mesh",)
WITH_MNIST = tuple(name for name in scripts() if name not in (*WITH_TRANSFORMER, *WITH_LAYOUTS))
# Started as a user does: as several processes by torchrun, and as one with several devices.
REALLY_STARTED = ("torch-ddp", "tf-mirrored", "jax-data")
# What a script does with a model file of the user's depends on how the strategy takes a model apart.
WITH_OWN_MODEL = ("torch-fsdp", "torch-pipeline", "torch-tensor", "tf-single", "jax-fsdp")
LINE = re.compile(r"^step (\d+): loss ([\d.]+),", re.MULTILINE)
# Stands in the way of the real one wherever a script's processes look for it.
NO_PACELINE = "raise ImportError('a script must not import paceline')\n"
MNIST = {"workload": "mnist-small", "dataset": "mnist-5k", "train_samples": 512, "global_batch": 64, "steps": STEPS}
TRANSFORMER = {
    "workload": "transformer", "options": {"depth": 2, "width": 32, "heads": 4}, "input_shape": [16], "classes": 32,
    "train_samples": 64, "global_batch": 16, "steps": STEPS,
}  # fmt: skip
MLP = {"workload": "mlp", "options": {"depth": 3, "width": 32}, "train_samples": 256, "steps": STEPS}
DECAYING = {"name": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}
WARMED_UP = {**DECAYING, "warmup_steps": 5}
# What other words of a script depend on, several at a time.
SCHEDULED = {"name": "adamw", "lr": 0.01, "weight_decay": 0.1, "schedule": "cosine", "warmup_steps": 2}
IN_STEPS = {"weight_decay": 0.5, "weight_decay_on": "matrices", "schedule": "step", "step_every": 3}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "accumulated": (
        "torch-ddp",
        {"local_batch": 16, "dataset_copies": 2, "knobs": {"accumulation": 4, "bucket_mb": 1.0}},
    ),
    "interleaved": (
        "torch-pipeline",
        {"global_batch": 32, "knobs": {"schedule": "interleaved"}, "optimizer": DECAYING},
    ),
    "divided-state": ("torch-zero", {"global_batch": 32, "optimizer": SCHEDULED}),
    "whole-shards": (
        "torch-fsdp",
        {"global_batch": 32, "knobs": {"wrap": "whole", "reshard_after_forward": False}, "optimizer": DECAYING},
    ),
    "half": ("torch-single", {"global_batch": 32, "precision": "bf16", "optimizer": {"name": "adagrad", "lr": 0.05}}),
    "half-shards": ("torch-fsdp", {"global_batch": 32, "precision": "bf16", "optimizer": DECAYING}),
    "keras-adagrad": ("tf-single", {"global_batch": 32, "optimizer": {"name": "adagrad", "lr": 0.05}}),
    "keras-decay": ("tf-mirrored", {"local_batch": 16, "execution": "compiled", "optimizer": WARMED_UP}),
    "jax-adagrad": ("jax-single", {"local_batch": 32, "optimizer": {"name": "adagrad", "lr": 0.05}}),
    "jax-decay": (
        "jax-fsdp",
        {"global_batch": 32, "optimizer": WARMED_UP, "dataset": "synthetic", "input_shape": [3, 8, 8], "classes": 4},
    ),
    "keras-schedule": ("tf-single", {"global_batch": 32, "optimizer": SCHEDULED}),
    "jax-schedule": ("jax-single", {"global_batch": 32, "optimizer": SCHEDULED}),
}
# More of the same, left to the long tests: AdamW and L2 terms, in copies and in parts, of matrices alone.
MORE_RECIPES: dict[str, tuple[str, dict[str, Any]]] = {
    f"{name} {optimizer}": (name, {"global_batch": 32, "optimizer": {"name": optimizer, "lr": lr, **IN_STEPS}})
    for name in ("torch-ddp", "torch-fsdp", "torch-zero", "torch-tensor", "tf-mirrored", "jax-fsdp")
    for optimizer, lr in (("sgd", 0.05), ("adamw", 0.01))
}
# Composed layouts: the first is always run, the others are left to the long tests.
LAYOUTS: dict[str, dict[str, Any]] = {
    "parts": {"layout": "shard=2,tensor=2", "clip": 0.5, "optimizer": DECAYING},
    "copies": {"layout": "replicate=2,shard=2", "accumulation": 2},
    "stages": {"layout": "shard=2,pipeline=2", "recompute": "full", "clip": 0.5, "optimizer": DECAYING},
    "rounds": {"layout": "pipeline=2", "accumulation": 2, "optimizer": DECAYING, "knobs": {"microbatches": 2}},
    "selective": {"layout": "tensor=2", "recompute": "selective"},
    "v": {"layout": "tensor=2,pipeline=2", "knobs": {"schedule": "zbv"}, "optimizer": DECAYING},
    "interleaved": {"layout": "replicate=2,pipeline=2", "knobs": {"schedule": "interleaved", "microbatches": 4}},
    "all": {"layout": "shard=2,tensor=2,pipeline=2", "accumulation": 2, "recompute": "full", "clip": 1.0},
    "shards of parts in half": {"layout": "shard=2,tensor=2", "precision": "bf16"},
    "shards in a pipeline in half": {"layout": "shard=2,pipeline=2", "precision": "bf16"},
}
# Half precision rounds to 3 digits, and not always alike.
VARIANT_TOLERANCES = {"half": 1e-2, "half-shards": 1e-2}
TORCH_MODEL = """
import numpy as np
import torch
from neighbour import WIDTH
from torch import nn


def build():
    return nn.Sequential(
        nn.Linear(WIDTH, 32), nn.ReLU(inplace=True), nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 1)
    )


def data():
    inputs = np.random.default_rng(0).normal(size=(80, WIDTH))
    targets = np.sin(inputs.sum(axis=1))
    return inputs[:64], targets[:64], inputs[64:], targets[64:]


def loss(outputs, targets):
    return (outputs[:, 0] - targets).square().mean()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
"""
KERAS_MODEL = """
import keras
import numpy as np
from keras import ops
from neighbour import WIDTH


def build():
    return keras.Sequential([
        keras.layers.Dense(32, activation="relu", kernel_regularizer=keras.regularizers.L2(0.01)), keras.layers.Dense(1)
    ])


def data():
    inputs = np.random.default_rng(0).normal(size=(80, WIDTH))
    targets = np.sin(inputs.sum(axis=1))
    return inputs[:64], targets[:64], inputs[64:], targets[64:]


def loss(outputs, targets):
    return ops.mean(ops.square(outputs[:, 0] - ops.cast(targets, "float32")))


def optimizer(variables):
    return keras.optimizers.SGD(0.05, momentum=0.9)
"""
JAX_MODEL = """
import jax
import jax.numpy as jnp
import numpy as np
from neighbour import WIDTH


class Descent:
    def init(self, params):
        return ()

    def update(self, gradients, state, params):
        return jax.tree.map(lambda gradient: -0.05 * gradient, gradients), state


def build():
    def init(key):
        first, second = jax.random.split(key)
        kernels = [jax.random.normal(first, (WIDTH, 32)) / 4, jax.random.normal(second, (32, 1)) / 4]
        return [{"kernel": kernel, "bias": jnp.zeros(kernel.shape[-1])} for kernel in kernels]

    def apply(params, x):
        x = jax.nn.relu(x @ params[0]["kernel"] + params[0]["bias"])
        return x @ params[1]["kernel"] + params[1]["bias"]

    return init, apply


def data():
    inputs = np.random.default_rng(0).normal(size=(80, WIDTH))
    targets = np.sin(inputs.sum(axis=1))
    return inputs[:64], targets[:64], inputs[64:], targets[64:]


def loss(outputs, targets):
    return jnp.square(outputs[:, 0] - targets).mean()


def optimizer(params):
    return Descent()
"""
MODELS = {"torch": TORCH_MODEL, "tensorflow": KERAS_MODEL, "jax": JAX_MODEL}
CHECKPOINTS = {"torch": "model.pt", "tensorflow": "model.weights.h5", "jax": "model.npz"}
# What a Keras block makes its arrays in.
KERAS_BLOCK = ("norm1", "norm2", "qkv", "out", "up", "down")
# Run where the script lies: it makes a checkpoint of its model from arrays in the order of the model's own.
SAVE_KERAS_WEIGHTS = """
import numpy as np
import train

model = train.build()
with np.load("start.npz") as arrays:
    model.set_weights([arrays[name] for name in arrays])
model.save_weights("start.weights.h5")
"""


def case(name: str, *values: Any, long: bool = False) -> Any:
    """A script, under the mark of its framework."""
    marks = [getattr(pytest.mark, str(strategy(name).framework)), *([pytest.mark.soak] if long else [])]
    return pytest.param(name, *values, marks=marks)


def cases(usual: Iterable[str], more: Iterable[str]) -> list[Any]:
    """Those that are always run, and those that are left to the long tests."""
    return [*map(case, usual), *(case(name, long=True) for name in more if name not in usual)]


class Bench:
    """Makes Paceline's run and the script's of one spec, and gives the losses of both."""

    def __init__(self, folder: Path, forking: ForkServers, interpreters: dict[str, Interpreter]) -> None:
        self.folder, self._servers, self._interpreters = folder, forking, interpreters
        (folder / "blocked" / "paceline").mkdir(parents=True)
        (folder / "blocked" / "paceline" / "__init__.py").write_text(NO_PACELINE)

    def spec(self, name: str, **fields: Any) -> RunSpec:
        workers = strategy(name).needs.fixed_workers or 2
        return complete(RunSpec.parse({"strategy": name, "workers": workers, **fields}, "test"))

    def own(self, kind: str) -> ModelFile:
        (self.folder / "neighbour.py").write_text("WIDTH = 8\n")
        file = self.folder / "mine.py"
        file.write_text(MODELS[kind])
        return ModelFile.from_text(f"{file}:build")

    def measured(self, spec: RunSpec) -> list[float]:
        launcher = LocalLauncher(self._servers.starter(strategy(spec.strategy)))
        record = launch(PlannedRun(spec, 0), "scripts", local_system(), lambda _event: None, launcher=launcher)
        assert record.ok, f"{record.reason}\n{record.log_tail}"
        return [float(loss) for loss in record.losses if loss is not None]

    def write_script(self, spec: RunSpec) -> str:
        text = emit(spec)
        (self.folder / "train.py").write_text(text)
        return text

    def run(self, command: list[str], framework: str | None) -> str:
        """A command in the folder of the script, where no Paceline can be imported, with or without an import made."""
        programs = self._interpreters[framework].programs if framework else sysconfig.get_path("scripts")
        environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": f"{self.folder}/blocked"}
        ended = subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS,
            check=False,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    def scripted(self, spec: RunSpec, *more: str, really: bool = False) -> tuple[list[float], str]:
        """Starts the script with the commands of its docstring and reads its losses."""
        told = ast.get_docstring(ast.parse(self.write_script(spec))) or ""
        commands = "\n".join(re.findall(r"^    (.*)$", told, re.MULTILINE))
        assert commands.endswith("train.py")
        framework = None if really else str(strategy(spec.strategy).framework)
        said = self.run(["bash", "-c", " ".join([commands, *more])], framework)
        losses = {int(step): float(loss) for step, loss in LINE.findall(said)}
        assert list(losses) == list(range(1, STEPS + 1)), said
        return list(losses.values()), said


@pytest.fixture
def bench(tmp_path: Path, forking: ForkServers, interpreters: dict[str, Interpreter]) -> Bench:
    return Bench(tmp_path, forking, interpreters)


def start(bench: Bench, spec: RunSpec) -> str:
    """Leaves Paceline's starting weights as a checkpoint of the script's model; gives its name."""
    layers, shape = spec_layers(spec)
    weights = initial_weights(layers, shape, spec.seed)
    return STARTS[str(strategy(spec.strategy).framework)](bench, spec, weights)


def start_torch(bench: Bench, spec: RunSpec, weights: Weights) -> str:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from paceline.frameworks.torch.model import torch_state

    layers, shape = spec_layers(spec)
    numbered = zip(named_layers(layers, shape), module_names(layers, shape), strict=True)
    places = {name: (number, layer) for (name, layer, _), number in numbered}
    state = {}
    in_memory_order = "ChannelsLastFlatten" in emit(spec)
    for name, tensor in torch_state(layers, shape, weights, channels_last=in_memory_order).items():
        owner, _, rest = name.partition(".")
        number, layer = places[owner]
        is_joint = isinstance(layer, Block) and rest.startswith("qkv.")
        # Queries, keys and values of all heads ─► those of each head together.
        state[f"{number}.{rest}"] = by_heads(tensor, layer.heads) if is_joint else tensor
    torch.save(state, bench.folder / "start.pt")
    return "start.pt"


def by_heads(tensor: Any, heads: int) -> Any:
    return tensor.unflatten(0, (3, heads, -1)).transpose(0, 1).flatten(0, 2)


def start_keras(bench: Bench, spec: RunSpec, weights: Weights) -> str:
    arrays = []
    for name, layer, given in named_layers(*spec_layers(spec)):
        parts = list(layer.weights(given))
        if isinstance(layer, Block):
            parts.sort(key=lambda part: KERAS_BLOCK.index(part.rpartition("_")[0]))
        arrays += [weights[f"{name}.{part}"] for part in parts]
    np.savez(bench.folder / "start.npz", *arrays)
    bench.write_script(spec)
    bench.run(["python", "-c", SAVE_KERAS_WEIGHTS], "tensorflow")
    return "start.weights.h5"


def start_jax(bench: Bench, spec: RunSpec, weights: Weights) -> str:
    layers, shape = spec_layers(spec)
    named = zip(named_layers(layers, shape), layer_names(layers), strict=True)
    names = {known_as: name for (known_as, _, _), name in named}
    renamed = {f"{names[name.partition('.')[0]]}.{name.partition('.')[2]}": array for name, array in weights.items()}
    np.savez(bench.folder / "start.npz", **renamed)
    return "start.npz"


STARTS = {"torch": start_torch, "tensorflow": start_keras, "jax": start_jax}


@pytest.mark.parametrize("name", cases(WITH_MNIST, scripts()))
def test_a_script_loses_what_pacelines_run_of_a_built_in_model_loses(bench: Bench, name: str) -> None:
    spec = bench.spec(name, **MNIST)
    losses, said = bench.scripted(spec, "--initial-weights", start(bench, spec), really=name in REALLY_STARTED)
    assert losses == pytest.approx(bench.measured(spec), rel=TOLERANCE)
    assert losses[-1] < losses[0]
    checkpoint = CHECKPOINTS[str(strategy(name).framework)]
    assert f"checkpoint: {checkpoint}" in said
    assert (bench.folder / checkpoint).is_file()


@pytest.mark.parametrize("name", cases(WITH_OWN_MODEL, scripts()))
def test_a_script_loses_what_pacelines_run_of_the_users_model_loses(bench: Bench, name: str) -> None:
    own = bench.own(str(strategy(name).framework))
    spec = bench.spec(name, model=own, global_batch=16, steps=STEPS)
    losses, _ = bench.scripted(spec)
    assert losses == pytest.approx(bench.measured(spec), rel=TOLERANCE)


@pytest.mark.parametrize(
    ("name", "variant"),
    [
        *(case(name, variant) for variant, (name, _) in VARIANTS.items()),
        *(case(name, variant, long=True) for variant, (name, _) in MORE_RECIPES.items()),
    ],
)
def test_a_script_with_other_settings_still_loses_what_pacelines_run_loses(
    bench: Bench, name: str, variant: str
) -> None:
    spec = bench.spec(name, **MLP, **(VARIANTS | MORE_RECIPES)[variant][1])
    losses, _ = bench.scripted(spec, "--initial-weights", start(bench, spec))
    assert losses == pytest.approx(bench.measured(spec), rel=VARIANT_TOLERANCES.get(variant, TOLERANCE))


@pytest.mark.parametrize("name", cases(WITH_TRANSFORMER, MORE_WITH_TRANSFORMER))
def test_a_script_loses_what_pacelines_run_of_the_transformer_loses(bench: Bench, name: str) -> None:
    spec = bench.spec(name, **TRANSFORMER)
    losses, _ = bench.scripted(spec, "--initial-weights", start(bench, spec))
    assert losses == pytest.approx(bench.measured(spec), rel=TOLERANCE)


@pytest.mark.torch
@pytest.mark.parametrize(
    "run", [run if run == "selective" else pytest.param(run, marks=pytest.mark.soak) for run in LAYOUTS]
)
def test_the_script_of_a_layout_loses_what_pacelines_run_of_it_loses(bench: Bench, run: str) -> None:
    spec = complete(RunSpec.parse({"strategy": "torch-mesh", **TRANSFORMER, **LAYOUTS[run]}, "test"))
    losses, said = bench.scripted(spec, "--initial-weights", start(bench, spec))
    assert losses == pytest.approx(bench.measured(spec), rel=1e-2 if spec.precision == "bf16" else TOLERANCE)
    assert losses[-1] < losses[0]
    assert "checkpoint: model.pt" in said


@pytest.mark.torch
@pytest.mark.soak
def test_the_script_of_a_layout_trains_the_users_model_in_stages(bench: Bench) -> None:
    fields = {"model": bench.own("torch"), "layout": "shard=2,pipeline=2", "clip": 0.5, "global_batch": 16}
    spec = complete(RunSpec.parse({"strategy": "torch-mesh", "steps": STEPS, **fields}, "test"))
    losses, _ = bench.scripted(spec)
    assert losses == pytest.approx(bench.measured(spec), rel=TOLERANCE)
