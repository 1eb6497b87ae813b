"""Checkpoints in the middle of training: it goes on as if there were none, and what is loaded is what was held."""

from typing import Any

import numpy as np
import pytest

from paceline.contract.context import spec_facts
from paceline.recommend.checkpoints import predicted_bytes
from paceline.spec import RunSpec
from paceline.strategies import Strategy, strategies

EVERY = 6
# Of each way to save one strategy in every run of the tests; `make soak` takes all.
ALWAYS = ("torch-ddp", "torch-fsdp", "torch-mesh", "tf-mirrored", "jax-data")
# What a file may have beside the arrays: names, shapes, alignment; the small CNN has 1.6 MB of parameters.
MOST_BESIDE = 0.05
SAVING = [
    pytest.param(
        chosen, id=chosen.name,
        marks=[getattr(pytest.mark, str(chosen.framework))] + [pytest.mark.soak] * (chosen.name not in ALWAYS),
    )
    for chosen in strategies().values()
    if "checkpoint_every" in chosen.needs.heeds and chosen.framework is not None and "cpu" in chosen.needs.devices
]  # fmt: skip


def fields(chosen: Strategy) -> dict[str, Any]:
    alone = {} if chosen.synchronous else {"workers": 1, "knobs": {"ahead": 1}}
    return {"strategy": chosen.name, "workers": chosen.needs.fixed_workers or 2, **chosen.testing.fields, **alone}


@pytest.mark.parametrize("chosen", SAVING)
def test_a_checkpoint_leaves_training_as_it_is(chosen: Strategy, trained: Any) -> None:
    saved = trained("mnist-small", **fields(chosen), checkpoint_every=EVERY)
    plain = trained("mnist-small", **fields(chosen))
    np.testing.assert_array_equal(saved.losses, plain.losses)
    assert saved.weights.keys() == plain.weights.keys()
    for name, array in plain.weights.items():
        np.testing.assert_array_equal(saved.weights[name], array, err_msg=name)


@pytest.mark.parametrize("chosen", SAVING)
def test_a_checkpoint_has_the_bytes_of_model_and_optimizer(chosen: Strategy, trained: Any) -> None:
    record = trained("mnist-small", **fields(chosen), checkpoint_every=EVERY).record
    savers = [rank for rank in record.ranks if rank.checkpoint is not None]
    for rank in savers:
        assert [save.step for save in rank.checkpoint.saves] == [6, 12, 18, 20]
        assert all(save.seconds > 0 for save in rank.checkpoint.saves)
        assert rank.checkpoint.load_seconds > 0
    total = sum(rank.checkpoint.saves[-1].bytes for rank in savers)
    assert total >= 3 * 402_442 * 4, "Adam keeps two numbers beside each parameter"
    predicted, _ = predicted_bytes(record.spec, spec_facts(record.spec), node_devices=2)
    assert total == pytest.approx(predicted, rel=MOST_BESIDE)


def test_a_run_with_checkpoints_is_another_run_and_one_without_keeps_its_key() -> None:
    plain = RunSpec(global_batch=64, steps=20)
    assert plain.key() != plain.model_copy(update={"checkpoint_every": 5}).key()
    assert "checkpoint_every" not in plain.model_dump(exclude_defaults=True)
