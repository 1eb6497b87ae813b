"""Every layout of torch-mesh trains as one worker does on the same global batch, in losses, weights and evaluation.

With SGD and momentum, because Adam hides a factor in the gradients; each array must have moved as far as on one worker,
so that a gradient that got lost on the way is seen however small it is.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from contract.conftest import WORKLOADS, Trained
from paceline.contract.context import spec_layers
from paceline.costs.layouts import MeshPlan
from paceline.layout import Layout
from paceline.plan import complete, refusal
from paceline.predict.schedules import orders
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
    on("tensor=4", classes=33),
    on("pipeline=4", "gpipe"),
    on("shard=2,tensor=2,pipeline=2", **EVERYTHING),
    on("replicate=2,shard=2,tensor=2", soak=True, clip=CLIP),
    on("replicate=2,shard=2,pipeline=2", soak=True, global_batch=32, **EVERYTHING),
    on("replicate=2,tensor=2,pipeline=2", soak=True, clip=CLIP),
    on("shard=4,tensor=2", soak=True, classes=33, recompute="selective"),
    on("shard=2,pipeline=4", soak=True, clip=CLIP),
    *(on("shard=2,pipeline=2", schedule, soak=True, **EVERYTHING) for schedule in SCHEDULES),
    *(on("tensor=2,pipeline=2", schedule, soak=True, **EVERYTHING) for schedule in SCHEDULES),
    *(on("replicate=2,pipeline=2", schedule, soak=True, clip=CLIP) for schedule in SCHEDULES),
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
    on("pipeline=2"), on("replicate=2,pipeline=2", soak=True), on("shard=2,tensor=2", clip=CLIP, accumulation=2),
    on("tensor=2", soak=True, knobs={"convolutions": "replicated"}, memory_format="contiguous"),
    on("replicate=2,tensor=2", soak=True), on("pipeline=2", soak=True, knobs={"balance": "measured"}),
])  # fmt: skip
def test_a_convolutional_network_is_cut_split_and_divided_too(fields: dict[str, Any], trained: Any) -> None:
    spread = trained("mnist-small", strategy="torch-mesh", **TRAINING, **fields)
    assert_equal_training(spread, trained.again(strategy("torch-mesh").testing.reference(spread.record.spec)))


@pytest.mark.parametrize("fields", [
    {"strategy": "torch-single", **EVERYTHING},
    {"strategy": "torch-ddp", "workers": 2, **EVERYTHING},
    {"strategy": "torch-fsdp", "workers": 2, **EVERYTHING, "recompute": "selective"},
    {"strategy": "torch-zero", "workers": 2, **EVERYTHING},
    {"strategy": "torch-ps-sync", "workers": 2, "recompute": "full", "accumulation": 2},
], ids=lambda fields: fields["strategy"])  # fmt: skip
def test_others_accumulate_recompute_and_clip_alike(fields: dict[str, Any], trained: Any) -> None:
    spread = trained("transformer", **TRAINING, **fields)
    assert_equal_training(spread, trained.again(strategy("torch-mesh").testing.reference(spread.record.spec)))


def test_clipping_is_felt(trained: Any) -> None:
    plain, clipped = (trained("transformer", strategy="torch-single", **TRAINING, clip=clip) for clip in (None, CLIP))
    assert abs(plain.losses[1] - clipped.losses[1]) > 100 * LOSS_TOLERANCE


class FakeStage:
    """As much of a stage as PyTorch's schedules ask for their order."""

    def __init__(self, index: int, count: int, ranks: int) -> None:
        self.stage_index, self.num_stages, self.group_size, self.group_rank = index, count, ranks, 0
        self.has_backward, self.submod, self.group, self.device = True, None, None, "cpu"
        self.is_first, self.is_last = index == 0, index == count - 1
        self.stage_index_to_group_rank: dict[int, int] = {}


def pytorchs_order(schedule: str, ranks: int, microbatches: int) -> list[list[Any]]:
    """The actions of every rank in PyTorch's own tables; overlapped ones one after the other, as they run."""
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    kinds = {"interleaved": schedules.ScheduleInterleaved1F1B, "zbv": schedules.ScheduleZBVZeroBubble,
             "interleaved-zero-bubble": schedules.ScheduleInterleavedZeroBubble,
             "dualpipev": schedules.ScheduleDualPipeV}  # fmt: skip
    plan = MeshPlan(Layout(pipeline=ranks), 64, schedule=schedule, stages_per_worker=2)  # type: ignore[arg-type]
    stages = [FakeStage(index, plan.stages, ranks) for index in plan.held_stages(0)]
    made = kinds[schedule](stages, n_microbatches=microbatches, loss_fn=lambda *_: 0)
    return [
        [part for action in made.pipeline_order[place] if action for part in action.sub_actions or (action,)]
        for place in range(ranks)
    ]


PASSES = {"FORWARD": "forward", "FULL_BACKWARD": "backward", "BACKWARD_INPUT": "inputs", "BACKWARD_WEIGHT": "weights"}


@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 4), (2, 8), (4, 8), (4, 12), (3, 9)])
@pytest.mark.parametrize("schedule", ["interleaved", "interleaved-zero-bubble", "zbv", "dualpipev"])
def test_predictions_make_their_passes_in_pytorchs_own_order(schedule: str, ranks: int, microbatches: int) -> None:
    found = [
        [(PASSES[action.computation_type.name], action.stage_index, action.microbatch_index) for action in rank]
        for rank in pytorchs_order(schedule, ranks, microbatches)
    ]
    assert [list(map(tuple, rank)) for rank in orders(schedule, ranks, microbatches, 2)] == found


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("schedule", ["interleaved", "interleaved-zero-bubble", "zbv", "dualpipev"])
def test_as_many_passes_wait_for_their_backward_pass_as_in_pytorchs_own_order(schedule: str, ranks: int) -> None:
    plan = MeshPlan(Layout(pipeline=ranks), 64, microbatches=2 * ranks, schedule=schedule, stages_per_worker=2)  # type: ignore[arg-type]
    for place, actions in enumerate(pytorchs_order(schedule, ranks, plan.microbatches)):
        waiting = most = 0
        for action in actions:
            kind = action.computation_type.name
            waiting += (kind == "FORWARD") - (kind in ("FULL_BACKWARD", "BACKWARD_WEIGHT"))
            most = max(most, waiting)
        assert plan.passes_kept(place) == most / plan.stages_per_worker


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"layout": "tensor=8"}, "4 heads cannot be split over tensor=8"),
    ({"layout": "tensor=4", "input_shape": [18]}, "a sequence of 18 tokens does not divide over tensor=4"),
    ({"layout": "pipeline=8"}, "transformer has 5 layers to cut between and 8 stages were asked for"),
    ({"layout": "pipeline=2", "knobs": {"microbatches": 3}}, "does not divide into 3 micro-batches"),
    ({"layout": "pipeline=4", "knobs": {"microbatches": 2}}, "schedule 1f1b needs at least 4 micro-batches"),
    ({"layout": "pipeline=2", "knobs": {"schedule": "dualpipev", "microbatches": 2}}, "needs at least 4 micro-batches"),
    ({"layout": "pipeline=2", "knobs": {"schedule": "interleaved", "stages_per_worker": 1}}, "at least 2 stages"),
    ({"layout": "shard=2", "knobs": {"schedule": "zbv"}}, "layout shard=2 has none"),
    ({"layout": "pipeline=2", "knobs": {"schedule": "zbv"}, "recompute": "selective"}, "back through each block twice"),
    ({"layout": "shard=2", "accumulation": 3}, "does not divide into 3 passes"),
    ({"layout": "pipeline=2", "accumulation": 3}, "does not divide into 3 passes of 4 micro-batches"),
    ({"layout": "shard=2", "optimizer": {"name": "lbfgs"}}, "L-BFGS needs them in one place"),
    ({"strategy": "torch-ddp", "layout": "shard=2"}, "torch-ddp divides a model in one way and takes no layout"),
    ({"strategy": "torch-layers", "workers": 2, "accumulation": 2}, "torch-layers makes one pass per step"),
    ({"strategy": "torch-tensor", "workers": 2, "recompute": "full"}, "torch-tensor keeps all activations"),
    ({"strategy": "torch-pipeline", "workers": 2, "clip": 1.0}, "torch-pipeline does not clip gradients"),
    ({"strategy": "torch-single", "execution": "compiled", "recompute": "full"}, "goes with execution eager"),
]


@pytest.mark.parametrize(("fields", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_what_cannot_be_laid_out_is_refused_in_words(fields: dict[str, Any], words: str) -> None:
    workload = {"workload": "transformer", "options": {"depth": 2, "width": 32, "heads": 4}, "input_shape": [16]}
    usual = {"strategy": "torch-mesh", "global_batch": 16, "train_samples": 64, "steps": 1, "classes": 32}
    spec = complete(RunSpec.parse({**workload, **usual, **fields}, "refused"))
    assert words in str(refusal(spec, local_system(), probe))


def test_an_old_pytorch_is_refused() -> None:
    spec = complete(RunSpec.parse({"strategy": "torch-mesh", "workers": 2, "global_batch": 16, "steps": 1}, "old"))
    old = replace(local_system(), frameworks={"torch": "2.8.0"})
    assert "torch-mesh needs PyTorch 2.10 or newer and this is 2.8.0" in str(refusal(spec, old, probe))


OTHERS_REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"layout": "context=2"}, "divides sequences and experts of causal transformers, and mnist-small is none"),
    ({"layout": "tensor=2,pipeline=2"}, "splits stages of causal transformers only, and mnist-small is none"),
    ({"layout": "tensor=7"}, "nothing in mnist-small divides over 7 workers"),
    ({"layout": "shard=2", "recompute": "full"}, "mnist-small has no transformer blocks"),
    ({"workload": "bert", "layout": "tensor=2", "recompute": "full"}, "does not compute split blocks of bert again"),
]


@pytest.mark.parametrize(("fields", "words"), OTHERS_REFUSED, ids=[words for _, words in OTHERS_REFUSED])
def test_what_other_models_cannot_have_is_refused_in_words(fields: dict[str, Any], words: str) -> None:
    usual = {"strategy": "torch-mesh", "global_batch": 16, "steps": 1}
    data = {} if "workload" in fields else {"dataset": "mnist-5k"}
    spec = complete(RunSpec.parse({**usual, **data, **fields}, "refused"))
    assert words in str(refusal(spec, local_system(), probe))
