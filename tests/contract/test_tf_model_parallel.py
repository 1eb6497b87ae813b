"""TensorFlow models cut over devices or split over a mesh: the losses of one worker, and really somewhere else."""

import json
import os
import subprocess
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

pytestmark = pytest.mark.tensorflow

STEPS = 6
WHOLE_BYTES = 402_442 * 4
# Nested, with a penalty on a layer of the first stage and one of the last.
SEQUENCE = """
import keras
from keras import layers


def build():
    return keras.Sequential([
        keras.Input((8, 8, 3)),
        keras.Sequential([layers.Conv2D(8, 3, padding="same", kernel_regularizer="l2"), layers.ReLU()]),
        layers.MaxPooling2D(), layers.Flatten(), layers.Dense(32, activation="relu"), layers.BatchNormalization(),
        layers.Dense(10, kernel_regularizer="l2"),
    ])
"""
# No sequence: a residual, and an optimizer of its own.
BRANCHED = """
import keras
from keras import layers


def build():
    image = keras.Input((8, 8, 3))
    x = layers.Dense(16, activation="relu", name="first")(layers.Flatten(name="flat")(image))
    wide = layers.Dense(32, activation="tanh", name="wide")(x)
    x = layers.Add(name="add")([x, layers.Dense(16, name="narrow")(wide)])
    return keras.Model(image, layers.Dense(10, name="last")(x))


def stages(model, count):
    head = keras.Model(model.input, model.get_layer("first").output)
    tail = keras.Model(model.get_layer("first").output, model.output)
    return [head, tail]


def optimizer(variables):
    return keras.optimizers.RMSprop(0.01)
"""
# Which kernels ran on which device in one step, as the runtime divided its graph: forward, backward and update.
KERNELS = """
import json, os, sys
from collections import Counter
from pathlib import Path
from paceline.plan import complete
from paceline.spec import RunSpec
from paceline.strategies import strategy
from paceline.contract.context import Context, Process, Rendezvous

spec = complete(RunSpec.model_validate_json(sys.argv[1]))
context = Context(spec, Process(0, 1, "worker", 0, (0,)), Rendezvous("127.0.0.1", 0))
job = strategy(spec.strategy).open_job(context)
job.start_epoch(0)
from tensorflow.python.eager import context as eager
eager.enable_run_metadata()
job.step(0, 1)
graphs = [part for graph in eager.export_run_metadata().function_graphs for part in graph.partition_graphs]
found = Counter(f"{node.device[-5:]} {node.op}" for graph in graphs for node in graph.node)
print(json.dumps(found), flush=True)
os._exit(0)
"""


def spec_of(workload: str, name: str, workers: int, **fields: Any) -> RunSpec:
    values = {"steps": STEPS, **WORKLOADS[workload], "strategy": name, "workers": workers, **fields}
    return complete(RunSpec.parse(values, "contract"))


def own_spec(file: Path, **fields: Any) -> RunSpec:
    values = {"model": ModelFile.from_text(str(file)), "input_shape": [8, 8, 3], "classes": 10, "global_batch": 16,
              "train_samples": 128, "steps": STEPS, "workers": 2, "strategy": "tf-layers"}  # fmt: skip
    return complete(RunSpec.parse({**values, **fields}, "own"))


def assert_follows_one_worker(trained: Any, spec: RunSpec) -> Any:
    spread, single = trained.again(spec), trained.again(strategy(spec.strategy).testing.reference(spec))
    np.testing.assert_allclose(spread.losses, single.losses, rtol=1e-4)
    assert spread.weights.keys() == single.weights.keys()
    for name, array in single.weights.items():
        np.testing.assert_allclose(spread.weights[name], array, atol=2e-4, err_msg=name)
    last, expected = spread.record.epochs[-1], single.record.epochs[-1]
    assert last.test_loss == pytest.approx(expected.test_loss, rel=1e-4)
    assert last.test_accuracy == pytest.approx(expected.test_accuracy, abs=0.01)
    return spread


def kernels_by_device(spec: RunSpec, python: Path) -> dict[str, dict[str, int]]:
    """What ran on each device, without the names that faster libraries give to the same kernels."""
    env = {**os.environ, **strategy(spec.strategy).needs.environment(spec, None), "CUDA_VISIBLE_DEVICES": ""}  # type: ignore[arg-type]
    command = [python, "-c", KERNELS, spec.model_dump_json()]
    told = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=240).stdout
    found: dict[str, dict[str, int]] = {}
    for key, count in json.loads(told.strip().splitlines()[-1]).items():
        device, _, kernel = key.partition(" ")
        plain = kernel.removeprefix("_Mkl").removeprefix("Native").replace("Fused", "").replace("WithBias", "")
        here = found.setdefault(device, {})
        here[plain] = here.get(plain, 0) + count
    return found


@pytest.mark.parametrize("microbatches", [1, 2])
def test_forward_and_backward_of_each_stage_run_on_its_own_device(microbatches: int, interpreters: Any) -> None:
    spec = spec_of("mnist-small", "tf-layers", 2, knobs={"microbatches": microbatches})
    found = kernels_by_device(spec, interpreters["tensorflow"].python)
    first, second = found["CPU:0"], found["CPU:1"]
    of_convolution = ("Conv2D", "Conv2DBackpropFilter", "MaxPool", "MaxPoolGrad")
    assert [first.get(kernel) for kernel in of_convolution] == [microbatches] * 4
    assert not {"MatMul", "SparseSoftmaxCrossEntropyWithLogits"} & first.keys()
    # Two dense layers: a product forward and two backward for each.
    assert second["MatMul"] == 6 * microbatches
    assert not set(of_convolution) & second.keys()
    assert (first["ResourceApplyAdam"], second["ResourceApplyAdam"]) == (2, 4)


@pytest.mark.parametrize("workload", ["mnist-small", pytest.param("transformer", marks=pytest.mark.soak)])
def test_stages_have_their_variables_on_their_own_devices(workload: str, trained: Any) -> None:
    spec = spec_of(workload, "tf-layers", 4, steps=SHARED_STEPS)
    (rank,) = trained.again(spec).record.ranks
    stages = rank.details["stages"]
    for number, stage in enumerate(stages):
        places = [f"/job:localhost/replica:0/task:0/device:CPU:{number}"] if stage["parameters"] else []
        assert stage["variable_devices"] == places
    promised = [
        (group.parameter_bytes, group.optimizer_bytes)
        for group in strategy("tf-layers").footprint(spec, spec_facts(spec)).groups
        for _ in range(group.ranks)
    ]
    assert [(stage["parameters"], stage["optimizer"]) for stage in stages] == promised
    assert len([stage for stage in stages if stage["parameters"]]) >= 3


@pytest.mark.parametrize(("workload", "knobs"), [
    ("mnist-small", {"microbatches": 2, "steps_per_execution": 4}), ("transformer", {"microbatches": 4}),
    pytest.param("mnist-small", {"microbatches": 4}, marks=pytest.mark.soak),
    pytest.param("transformer", {"microbatches": 2, "steps_per_execution": 4}, marks=pytest.mark.soak),
], ids=str)  # fmt: skip
def test_micro_batches_and_several_steps_per_call_change_nothing(
    workload: str, knobs: dict[str, Any], trained: Any
) -> None:
    assert_follows_one_worker(trained, spec_of(workload, "tf-layers", 2, knobs=knobs))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    for name, text in (("sequence", SEQUENCE), ("branched", BRANCHED)):
        (folder / f"{name}.py").write_text(text)
    return {name: folder / f"{name}.py" for name in ("sequence", "branched")}


@pytest.mark.parametrize("model", ["sequence", "branched"])
def test_a_model_of_the_users_is_cut_by_itself_or_as_its_file_says(
    model: str, models: dict[str, Path], trained: Any
) -> None:
    run = assert_follows_one_worker(trained, own_spec(models[model]))
    held = [stage["parameters"] for stage in run.record.ranks[0].details["stages"]]
    assert min(held) > 0


def test_micro_batches_of_a_users_model_count_its_penalties_once(tmp_path: Path, trained: Any) -> None:
    file = tmp_path / "plain.py"
    # Normalisation over a micro-batch is another than over the batch.
    file.write_text(SEQUENCE.replace("layers.BatchNormalization(),", ""))
    assert_follows_one_worker(trained, own_spec(file, knobs={"microbatches": 4}))


STAGES = "return [head, tail]"
WRONG_STAGES = {
    "stages(model, 2) of wrong.py:build must return a list of Keras models or layers": "return model",
    "stages(model, 2) of wrong.py:build returned 1 stages; return 2": "return [model]",
    "fails with AttributeError": "return model.body",
    "is in none of the 2 stages; put each layer into one stage": "return [head, layers.Dense(10)]",
    "first/kernel of wrong.py:build is in stages 0 and 1": "return [head, model]",
    "the first stage of wrong.py:build has no parameters": "return [layers.Flatten(), model]",
    "do not give what the model gives": "return [keras.Sequential([head, layers.Activation('tanh')]), tail]",
}


@pytest.mark.parametrize("words", WRONG_STAGES)
def test_wrong_stages_are_named(words: str, tmp_path: Path, trained: Any) -> None:
    file = tmp_path / "wrong.py"
    file.write_text(BRANCHED.replace(STAGES, WRONG_STAGES[words]))
    spec = own_spec(file)
    record = launch(PlannedRun(spec, 0), "wrong", local_system(), lambda _event: None, launcher=trained.launcher(spec))
    assert not record.ok
    assert words in str(record.reason)


@pytest.mark.parametrize(("workload", "workers", "tensor"), [
    ("mnist-small", 2, 2), ("mnist-small", 4, 2), ("transformer", 4, 2),
    pytest.param("mnist-small", 4, 4, marks=pytest.mark.soak),
    pytest.param("transformer", 2, 2, marks=pytest.mark.soak),
    pytest.param("transformer", 4, 4, marks=pytest.mark.soak),
])  # fmt: skip
def test_every_shape_of_the_mesh_gives_the_same(workload: str, workers: int, tensor: int, trained: Any) -> None:
    assert_follows_one_worker(trained, spec_of(workload, "tf-dtensor", workers, knobs={"tensor": tensor}))


@pytest.mark.parametrize(
    "optimizer",
    [
        {"name": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 0.01},
        {"name": "adagrad", "lr": 0.02},
        {"name": "sgd", "lr": 0.05},
    ],
    ids=lambda settings: f"{settings['name']}-{len(settings)}",
)
def test_every_optimizer_is_kept_in_the_same_parts(optimizer: dict[str, Any], trained: Any) -> None:
    spec = spec_of("mnist-small", "tf-dtensor", 2, optimizer=optimizer, knobs={"tensor": 2, "steps_per_execution": 3})
    (rank,) = assert_follows_one_worker(trained, spec).record.ranks
    (group,) = strategy("tf-dtensor").footprint(spec, spec_facts(spec)).groups
    assert rank.details["held_bytes"] == {
        "parameters": 2 * group.parameter_bytes,
        "optimizer": 2 * group.optimizer_bytes,
    }


def test_each_device_has_its_shard_of_every_split_array(trained: Any) -> None:
    (rank,) = trained.again(spec_of("transformer", "tf-dtensor", 4, knobs={"tensor": 2})).record.ranks
    layouts = rank.details["layouts"]
    everywhere = [f"/job:localhost/replica:0/task:0/device:CPU:{number}" for number in range(4)]
    assert all(layout["devices"] == everywhere for layout in layouts.values())
    expected = {
        "0_embed.tokens": [32, 32],
        "1_block.norm1_scale": [32],
        "1_block.qkv_kernel": [32, 3, 2, 8],
        "1_block.out_kernel": [2, 8, 32],
        "2_block.up_kernel": [32, 64],
        "2_block.up_bias": [64],
        "2_block.down_kernel": [64, 32],
        "4_dense.kernel": [32, 16],
    }
    assert {name: layouts[name]["shapes"] for name in expected} == {
        name: [shape] * 4 for name, shape in expected.items()
    }
    assert rank.details["samples_each"] == [8] * 4


def test_without_a_model_dimension_each_device_has_everything_and_a_share_of_the_batch(trained: Any) -> None:
    (rank,) = trained.again(spec_of("mnist-small", "tf-dtensor", 2)).record.ranks
    assert rank.details["samples_each"] == [32, 32]
    assert rank.details["held_bytes"]["parameters"] == 2 * WHOLE_BYTES


@pytest.mark.parametrize(("workers", "tensor"), [(2, 1), (2, 2), (4, 2)])
def test_a_watched_mesh_sends_the_bytes_of_its_footprint(workers: int, tensor: int, trained: Any) -> None:
    spec = spec_of("mnist-small", "tf-dtensor", workers, knobs={"tensor": tensor})
    (group,) = strategy("tf-dtensor").footprint(spec, spec_facts(spec)).groups
    record = trained.again(spec.model_copy(update={"instrumented": True})).record
    # Replicas sum their losses too.
    loss_bytes = 4 if workers > tensor else 0
    expected = sum(message.payload_bytes * message.count for message in group.messages) + loss_bytes
    assert [part.rank for part in record.breakdown] == list(range(workers))
    for part in record.breakdown:
        assert part.sent_bytes == expected
        assert part.exposed > 0
        assert min(part.forward, part.backward, part.optimizer, part.input) > 0
        assert part.other >= 0


@pytest.mark.parametrize(
    ("workload", "name", "workers", "fields", "words"),
    [
        ("mnist-small", "tf-layers", 6, {}, "has 5 layers to cut between and 6 stages were asked for"),
        ("mnist-small", "tf-layers", 2, {"knobs": {"microbatches": 7}}, "64 does not divide into 7 micro-batches"),
        ("mnist-small", "tf-layers", 2, {"precision": "fp16"}, "does not run with precision fp16"),
        ("mnist-small", "tf-layers", 2, {"optimizer": {"name": "lbfgs"}}, "lbfgs"),
        (
            "mnist-small",
            "tf-dtensor",
            3,
            {"knobs": {"tensor": 2}, "global_batch": 66},
            "rows of 2 need a multiple of 2",
        ),
        ("transformer", "tf-dtensor", 8, {"knobs": {"tensor": 8}}, "4 heads do not divide over 8 workers"),
        ("mnist-small", "tf-dtensor", 7, {"knobs": {"tensor": 7}}, "nothing in mnist-small divides over 7 workers"),
        ("mnist-small", "tf-dtensor", 2, {"memory_format": "contiguous"}, "channels_last"),
    ],
)
def test_what_cannot_be_divided_is_refused_in_words(
    workload: str, name: str, workers: int, fields: dict[str, Any], words: str
) -> None:
    assert words in str(refusal(spec_of(workload, name, workers, **fields), local_system(), probe))


def test_a_keras_model_is_refused_by_the_mesh_in_words(models: dict[str, Path]) -> None:
    reason = refusal(own_spec(models["sequence"], strategy="tf-dtensor"), local_system(), probe)
    assert "tf-dtensor cannot train a Keras model" in str(reason)
