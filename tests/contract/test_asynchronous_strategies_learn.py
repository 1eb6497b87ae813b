"""What takes the place of equality for asynchronous strategies: they learn, and every worker has a part in it."""

from typing import Any

import pytest

from paceline.strategies import Strategy, strategies

ASYNCHRONOUS = [
    pytest.param(chosen, id=chosen.name, marks=getattr(pytest.mark, str(chosen.framework)))
    for chosen in strategies().values()
    if not chosen.synchronous
]
# Two epochs of all of mnist-5k; chance is ln 10 = 2.30.
FIELDS: dict[str, Any] = {"workers": 2, "train_samples": None, "global_batch": 256, "steps": None, "epochs": 2}


@pytest.mark.parametrize("chosen", ASYNCHRONOUS)
def test_loss_falls_below_what_the_strategy_states(chosen: Strategy, trained: Any) -> None:
    assert chosen.testing.must_reach_loss is not None, "an asynchronous strategy states the loss that it reaches"
    assert chosen.testing.must_reach_loss < 1.5
    last = trained("mnist-small", strategy=chosen.name, **FIELDS).record.epochs[-1]
    assert last.train_loss < chosen.testing.must_reach_loss
    assert last.test_accuracy > 0.6


@pytest.mark.parametrize("chosen", ASYNCHRONOUS)
def test_every_worker_contributes(chosen: Strategy, trained: Any) -> None:
    record = trained("mnist-small", strategy=chosen.name, **FIELDS).record
    updates = [rank.details["updates"] for rank in record.ranks if rank.role == "worker"]
    assert len(updates) == 2
    assert min(updates) > 0
