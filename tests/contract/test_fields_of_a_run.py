"""Every strategy and every field of a run: it trains as one worker does with that field, or refuses it in words."""

from typing import Any

import numpy as np
import pytest

from paceline.spec import RunSpec
from paceline.strategies import Strategy, strategies
from paceline.typical import FIELD_VALUES, field_refusals

# What a field may change in the losses of a few steps; those that are not here only change how they are computed.
TOLERANCES = {"bf16": 5e-3, "fp16": 5e-3, "bf16-pure": 5e-2}
USUAL = 1e-4
# Fields that are felt in the losses, so that one which is passed over would be seen.
FELT = {"clip": 0.2, "precision": None}
LR = 0.1
# An asynchronous strategy trains as one worker does where it has one; Downpour's servers have their own optimizer.
ALONE: dict[str, dict[str, Any]] = {
    "torch-downpour": {"server_optimizer": "sgd", "lr": LR, "warm_up_updates": 1},
    "tf-ps": {"ahead": 1},
}
# Pairs of strategy and field that are trained in every run of the tests; `make soak` trains all.
ALWAYS = (
    ("torch-downpour", "accumulation"), ("torch-downpour", "clip"), ("torch-downpour", "precision"),
    ("torch-local-sgd", "clip"), ("torch-zero", "accumulation"),
)  # fmt: skip
DEVICES = [(chosen, device) for chosen in strategies().values() for device in ("cpu", "cuda")]


def is_refused(chosen: Strategy, field: str, value: Any) -> bool:
    return next(reason for name, setting, reason in field_refusals(chosen, "cpu") if (name, setting) == (field, value))


@pytest.mark.parametrize(("chosen", "device"), [
    pytest.param(chosen, device, id=f"{chosen.name}-{device}")
    for chosen, device in DEVICES if device in chosen.needs.devices
])  # fmt: skip
def test_what_is_refused_is_refused_with_the_strategy_the_field_and_what_to_do(chosen: Strategy, device: Any) -> None:
    for field, value, reason in field_refusals(chosen, device):
        if reason is not None:
            assert chosen.name in reason, reason
            assert field in reason or str(value) in reason, reason
            assert any(word in reason for word in ("; use ", "; leave ", "; it offers ")), reason


def test_every_field_that_some_strategies_heed_is_asked_for() -> None:
    heeded = set().union(*(chosen.needs.heeds for chosen in strategies().values()))
    assert heeded - {"layout"} <= set(FIELD_VALUES)
    assert set(FIELD_VALUES) <= set(RunSpec.model_fields)


def cases() -> list[Any]:
    return [
        pytest.param(
            chosen, field, value, id=f"{chosen.name}-{field}-{value}",
            marks=[getattr(pytest.mark, str(chosen.framework))]
            + [pytest.mark.soak] * ((chosen.name, field) not in ALWAYS),
        )
        for chosen in strategies().values()
        if chosen.framework is not None and "cpu" in chosen.needs.devices
        for field, value, reason in field_refusals(chosen, "cpu")
        if reason is None
    ]  # fmt: skip


@pytest.mark.parametrize(("chosen", "field", "value"), cases())
def test_a_field_that_is_heeded_trains_as_one_worker_does(
    chosen: Strategy, field: str, value: Any, trained: Any
) -> None:
    workers = chosen.needs.fixed_workers or (2 if chosen.synchronous else 1)
    training = {"steps": 4, "optimizer": {"name": "sgd", "lr": LR}, **chosen.testing.fields}
    asked = {"strategy": chosen.name, "workers": workers, "knobs": ALONE.get(chosen.name, {}), **training}
    value = FELT.get(field) or value
    spread = trained("transformer", **asked, **{field: value})
    single = trained.again(chosen.testing.reference(spread.record.spec))
    np.testing.assert_allclose(spread.losses, single.losses, rtol=TOLERANCES.get(value, USUAL))
    if field in FELT:
        assert (spread.losses != trained("transformer", **asked).losses).any()
