"""The data-parallel TensorFlow strategies in all their settings: none strays from one worker."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.breakdown import PARTS, WARM_UP_STEPS
from paceline.plan import complete, refusal
from paceline.runs.probe import probe
from paceline.spec import ModelFile, RunSpec
from paceline.strategies import strategy
from paceline.systems import local_system

pytestmark = pytest.mark.tensorflow
EXACT, ACROSS_FRAMEWORKS = 1e-4, 1e-3
WEIGHT_TOLERANCE = 2e-4

# Two layers that share their weights, one that is frozen, a penalty on weights, and probabilities as outputs.
ODD = """
import keras
import numpy as np


def build():
    inputs = keras.Input((20,))
    penalty = keras.regularizers.L2(1e-2)
    x = keras.layers.Dense(32, activation="relu", kernel_regularizer=penalty)(inputs)
    twice = keras.layers.Dense(32, activation="relu")
    x = keras.layers.Dense(32, trainable=False)(twice(twice(x)))
    return keras.Model(inputs, keras.layers.Dense(4, activation="softmax")(x))


def data():
    x = np.random.default_rng(0).normal(size=(256, 20)).astype("float32")
    y = ((x[:, 0] > 0) * 2 + (x[:, 1] > 0)).astype("int64")
    return x[:200], y[:200], x[200:], y[200:]
"""
# A model that makes its variables when it first sees inputs, no classes, a loss and an optimizer of its own.
SUBCLASSED = """
import keras
import numpy as np


class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.first, self.second = keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)

    def call(self, x):
        return self.second(self.first(x))


def build():
    return Net()


def data():
    x = np.random.default_rng(0).normal(size=(256, 20)).astype("float32")
    y = x[:, :1] * 2 + x[:, 1:2]
    return x[:200], y[:200], x[200:], y[200:]


def loss(outputs, targets):
    return keras.ops.mean(keras.ops.square(outputs - targets))


def optimizer(parameters):
    return keras.optimizers.RMSprop(0.01)
"""


def assert_same(found: Any, reference: Any, tolerance: float = EXACT) -> None:
    np.testing.assert_allclose(found.losses, reference.losses, rtol=tolerance)
    assert found.weights.keys() == reference.weights.keys()
    for name, array in reference.weights.items():
        np.testing.assert_allclose(found.weights[name], array, atol=WEIGHT_TOLERANCE, err_msg=name)


@pytest.mark.parametrize(
    ("name", "workers", "knobs"),
    [
        ("tf-mirrored", 2, {"cross_device_ops": "hierarchical_copy"}),
        ("tf-mirrored", 4, {"cross_device_ops": "one_device"}),
        ("tf-mirrored", 2, {"loop": "fit"}),
        ("tf-mirrored", 2, {"steps_per_execution": 3}),
        ("tf-multiworker", 2, {"communication": "ring", "steps_per_execution": 3}),
        ("tf-central", 2, {"steps_per_execution": 3}),
        ("tf-single", 1, {"steps_per_execution": 3}),
    ],
    ids=str,
)
@pytest.mark.parametrize("workload", ["mnist-small", pytest.param("transformer", marks=pytest.mark.soak)])
def test_no_setting_changes_what_is_learned(
    name: str, workers: int, knobs: dict[str, Any], workload: str, trained: Any
) -> None:
    found = trained(workload, strategy=name, workers=workers, knobs=knobs)
    single = trained.again(found.record.spec.model_copy(update={"strategy": "tf-single", "workers": 1, "knobs": {}}))
    assert_same(found, single)
    assert found.record.ranks[0].details["steps_per_execution"] == knobs.get("steps_per_execution", 1)


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.soak), 2])
def test_fit_that_is_taken_apart_trains_the_same_and_adds_up(workers: int, trained: Any) -> None:
    fields = {"strategy": "tf-mirrored", "workers": workers, "knobs": {"loop": "fit"}}
    # Of one epoch that is shorter than the instrumented run.
    timed = trained("mnist-small", **fields)
    noted = trained("mnist-small", **fields, instrumented=True)
    shared = min(len(noted.losses), len(timed.losses))
    assert shared == len(timed.losses)
    np.testing.assert_allclose(noted.losses[:shared], timed.losses, rtol=EXACT)
    (part,) = noted.record.breakdown
    assert part.steps == len(noted.losses) - WARM_UP_STEPS
    assert sum(getattr(part, name) for name in PARTS) == pytest.approx(part.step, rel=0.02)
    assert min(getattr(part, name) for name in (*PARTS, "overlapped")) >= 0
    assert (part.exposed > 0) == (workers > 1)


@pytest.mark.parametrize(("name", "workers"), [("tf-single", 1), ("tf-mirrored", 2)])
def test_compiling_does_not_change_what_is_learned(name: str, workers: int, trained: Any) -> None:
    found = trained("mnist-small", strategy=name, workers=workers, execution="compiled")
    assert_same(found, trained("mnist-small", strategy="tf-single"))


@pytest.mark.parametrize(
    "settings",
    [
        {"name": "adam", "eps": 1e-3, "weight_decay": 0.01, "betas": [0.8, 0.99]},
        {"name": "sgd", "lr": 0.03},
        {"name": "sgd", "lr": 0.02, "momentum": 0.9, "weight_decay": 0.01},
        {"name": "adagrad", "lr": 0.02, "eps": 1e-3},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
def test_an_optimizer_means_what_it_means_in_torch(settings: dict[str, Any], trained: Any) -> None:
    pytest.importorskip("torch", reason="PyTorch is the reference")
    torch = trained("mnist-small", strategy="torch-single", optimizer=settings)
    single = trained("mnist-small", strategy="tf-single", optimizer=settings)
    assert_same(single, torch, ACROSS_FRAMEWORKS)
    assert_same(trained("mnist-small", strategy="tf-mirrored", workers=2, optimizer=settings), single)


def own_cases() -> list[Any]:
    """Each model once in a loop of ours and once in Keras's, each strategy once; the rest is left to the long tests."""
    texts = {"odd": ODD, "subclassed": SUBCLASSED}
    ways = {"mirrored": ("tf-mirrored", {}), "fit": ("tf-mirrored", {"loop": "fit"}), "central": ("tf-central", {}),
            "multiworker": ("tf-multiworker", {})}  # fmt: skip
    usual = {("odd", "fit"), ("odd", "multiworker"), ("subclassed", "fit"), ("subclassed", "central")}
    return [
        pytest.param(texts[text], *ways[way], id=f"{way}-{text}", marks=[pytest.mark.soak] * ((text, way) not in usual))
        for text in texts
        for way in ways
    ]


@pytest.mark.parametrize(("text", "name", "knobs"), own_cases())
def test_a_model_of_ones_own_learns_the_same(
    text: str, name: str, knobs: dict[str, Any], tmp_path: Path, trained: Any
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(text)

    def spec(strategy: str, workers: int, **knobs: Any) -> RunSpec:
        fields = {"strategy": strategy, "workers": workers, "knobs": knobs, "global_batch": 40, "steps": 10}
        return complete(RunSpec.model_validate({"model": ModelFile.from_text(str(file)), **fields}))

    assert_same(trained.again(spec(name, 2, **knobs)), trained.again(spec("tf-single", 1)))


@pytest.mark.parametrize(
    ("name", "fields", "words"),
    [
        ("tf-mirrored", {"knobs": {"cross_device_ops": "nccl"}}, "cross_device_ops nccl needs GPUs: TensorFlow has no"),
        ("tf-mirrored", {"knobs": {"loop": "fit", "steps_per_execution": 2}}, "loop fit tells one loss per call"),
        ("tf-multiworker", {"knobs": {"communication": "nccl"}}, "communication nccl needs GPUs; on CPU use ring"),
        ("tf-central", {"execution": "compiled"}, "XLA cannot read variables of another device; use eager"),
        (
            "tf-central",
            {"knobs": {"steps_per_execution": 0}},
            "knob steps_per_execution of tf-central must be at least",
        ),
        ("tf-single", {"optimizer": {"name": "lbfgs"}}, "optimizer lbfgs is not there in TensorFlow; use adam"),
        ("tf-single", {"memory_format": "contiguous"}, "leave out memory_format contiguous"),
    ],
)
def test_what_tensorflow_cannot_do_is_said_before_the_run(name: str, fields: dict[str, Any], words: str) -> None:
    workers = strategy(name).needs.fixed_workers or 2
    spec = complete(
        RunSpec.model_validate({"strategy": name, "workers": workers, "global_batch": 64, "steps": 1, **fields})
    )
    assert words in (refusal(spec, local_system(), probe) or "")
