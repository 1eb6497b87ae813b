"""Predictions take the passes of a pipeline in the order that PyTorch's own schedules have."""

from typing import Any

import pytest

from paceline.costs.layouts import MeshPlan
from paceline.layout import Layout
from paceline.predict.schedules import orders

pytestmark = pytest.mark.torch


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
