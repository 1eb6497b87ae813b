"""Strategies that keep a model whole or divide it in one way accumulate, recompute and clip as one worker does."""

from typing import Any

import pytest

from contract.test_torch_mesh import CLIP, EVERYTHING, LOSS_TOLERANCE, TRAINING, assert_equal_training
from paceline.contract.strategy import on_baseline

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("fields", [
    {"strategy": "torch-single", **EVERYTHING},
    {"strategy": "torch-ddp", "workers": 2, **EVERYTHING},
    {"strategy": "torch-fsdp", "workers": 2, **EVERYTHING, "recompute": "selective"},
    {"strategy": "torch-zero", "workers": 2, **EVERYTHING},
    {"strategy": "torch-ps-sync", "workers": 2, "recompute": "full", "accumulation": 2},
], ids=lambda fields: fields["strategy"])  # fmt: skip
def test_others_accumulate_recompute_and_clip_alike(fields: dict[str, Any], trained: Any) -> None:
    spread = trained("transformer", **TRAINING, **fields)
    assert_equal_training(spread, trained.again(on_baseline(spread.record.spec)))


def test_clipping_is_felt(trained: Any) -> None:
    plain, clipped = (trained("transformer", strategy="torch-single", **TRAINING, clip=clip) for clip in (None, CLIP))
    assert abs(plain.losses[1] - clipped.losses[1]) > 100 * LOSS_TOLERANCE
