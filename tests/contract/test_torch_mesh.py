"""Every layout of torch-mesh trains as one worker does on the same global batch, in losses, weights and evaluation.

With SGD and momentum, because Adam hides a factor in the gradients; each array must have moved as far as on one worker,
so that a gradient that got lost on the way is seen however small it is.
"""

from typing import Any

import numpy as np
import pytest

from contract.conftest import WORKLOADS, Trained
from paceline.contract.context import spec_layers
from paceline.plan import complete, refusal
from paceline.runs.probe import probe
from paceline.spec import RunSpec
from paceline.strategies import strategy
from paceline.systems import local_system
from paceline.workloads.base import initial_weights

pytestmark = pytest.mark.torch

LOSS_TOLERANCE = WEIGHT_TOLERANCE = 1e-4
# How far an array may have moved otherwise than on one worker, of the way that it moved there.
MOVE_TOLERANCE = 1e-3
# Below the norm of the gradients of each of the first steps, so that it is felt.
CLIP = 0.2
TRAINING = {"steps": 4, "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9}}
SCHEDULES = ("gpipe", "1f1b", "interleaved", "interleaved-zero-bubble", "zbv", "dualpipev")
EVERYTHING = {"recompute": "full", "accumulation": 2, "clip": CLIP}


def on(layout: str, schedule: str | None = None, soak: bool = False, **fields: Any) -> Any:
    words = [layout, schedule, *(f"{name} {value}" for name, value in fields.items())]
    knobs = {"knobs": {"schedule": schedule}} if schedule else {}
    marks = [pytest.mark.soak] if soak else []
    return pytest.param({"layout": layout, **knobs, **fields}, id=" ".join(filter(None, words)), marks=marks)


LAYOUTS = [
    on("shard=2"),
    on("replicate=2"),
    on("tensor=2"),
    *(on("pipeline=2", schedule) for schedule in SCHEDULES),
    on("shard=2", **EVERYTHING),
    on("shard=2,tensor=2", recompute="full", accumulation=4, clip=CLIP, knobs={"reduce": "each"}),
    on("replicate=2,shard=2", soak=True, accumulation=2, clip=CLIP, knobs={"reduce": "each"}),
    on("tensor=2", recompute="selective", clip=CLIP),
    on("tensor=2", **EVERYTHING),
    on("pipeline=2", "1f1b", clip=CLIP),
    on("pipeline=2", "zbv", **EVERYTHING),
    on("shard=3", global_batch=12),
    on("replicate=2,shard=2", clip=CLIP),
    on("shard=2,tensor=2", **EVERYTHING),
    on("replicate=2,tensor=2", accumulation=2),
    on("shard=2,pipeline=2", "1f1b", accumulation=2, clip=CLIP),
    on("shard=2,pipeline=2", "zbv"),
    on("replicate=2,pipeline=2", "dualpipev"),
    on("tensor=2,pipeline=2", "interleaved", recompute="selective"),
    on("tensor=2,pipeline=2", "1f1b", execution="compiled", recompute="selective", clip=CLIP),
    on("tensor=4", classes=33),
    on("pipeline=4", "gpipe"),
    on("pipeline=2", soak=True, knobs={"balance": "blocks"}),
    on("shard=2,tensor=2,pipeline=2", **EVERYTHING),
    on("replicate=2,shard=2,tensor=2", soak=True, clip=CLIP),
    on("replicate=2,shard=2,pipeline=2", soak=True, global_batch=32, **EVERYTHING),
    on("replicate=2,tensor=2,pipeline=2", soak=True, clip=CLIP),
    on("shard=4,tensor=2", soak=True, classes=33, recompute="selective"),
    on("shard=2,pipeline=4", soak=True, clip=CLIP),
    *(on("shard=2,pipeline=2", schedule, soak=True, **EVERYTHING) for schedule in SCHEDULES),
    *(on("tensor=2,pipeline=2", schedule, soak=True, **EVERYTHING) for schedule in SCHEDULES),
    *(on("replicate=2,pipeline=2", schedule, soak=True, clip=CLIP) for schedule in SCHEDULES),
    *(on("tensor=2,pipeline=2", schedule, soak=True, execution="compiled", **EVERYTHING) for schedule in SCHEDULES),
    *(on("tensor=2,pipeline=2", schedule, soak=True, execution="compiled") for schedule in SCHEDULES),
]


def assert_equal_training(spread: Trained, single: Trained, move_tolerance: float = MOVE_TOLERANCE) -> None:
    assert spread.record.spec.strategy != single.record.spec.strategy or spread.record.key != single.record.key
    np.testing.assert_allclose(spread.losses, single.losses, rtol=LOSS_TOLERANCE)
    expected = single.record.epochs[-1].test_loss
    assert spread.record.epochs[-1].test_loss == pytest.approx(expected, rel=LOSS_TOLERANCE)
    assert spread.weights.keys() == single.weights.keys()
    before = initial_weights(*spec_layers(single.record.spec), single.record.spec.seed)
    for name, after in single.weights.items():
        np.testing.assert_allclose(spread.weights[name], after, atol=WEIGHT_TOLERANCE, err_msg=name)
        moved, way = np.linalg.norm(spread.weights[name] - after), np.linalg.norm(after - before[name])
        assert way > 0, f"{name} has no gradient on one worker"
        assert moved < move_tolerance * way, f"{name} moved otherwise"


@pytest.mark.parametrize("fields", LAYOUTS)
def test_a_layout_trains_as_one_worker_does(fields: dict[str, Any], trained: Any) -> None:
    asked = {**WORKLOADS["transformer"], "strategy": "torch-mesh", **TRAINING, **fields}
    spec = complete(RunSpec.parse(asked, "layout"))
    assert refusal(spec, local_system(), probe) is None
    spread = trained.again(spec)
    assert_equal_training(spread, trained.again(strategy("torch-mesh").testing.reference(spread.record.spec)))


@pytest.mark.parametrize("fields", [
    on("shard=2,tensor=2", clip=CLIP, accumulation=2),
    on("pipeline=2", soak=True), on("replicate=2,pipeline=2", soak=True), on("pipeline=2", "zbv", soak=True),
    on("tensor=2", soak=True, knobs={"convolutions": "replicated"}, memory_format="contiguous"),
    on("replicate=2,tensor=2", soak=True), on("pipeline=2", soak=True, knobs={"balance": "measured"}),
])  # fmt: skip
def test_a_convolutional_network_is_cut_split_and_divided_too(fields: dict[str, Any], trained: Any) -> None:
    spread = trained("mnist-small", strategy="torch-mesh", **TRAINING, **fields)
    assert_equal_training(spread, trained.again(strategy("torch-mesh").testing.reference(spread.record.spec)))
