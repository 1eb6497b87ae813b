"""Every strategy trains by the run's recipe as one worker of PyTorch does: AdamW, decay of matrices alone, a schedule.

What a strategy cannot do it refuses in words.
"""

from typing import Any

import numpy as np
import pytest

from paceline.plan import complete, refusal
from paceline.runs.probe import probe
from paceline.spec import RunSpec
from paceline.strategies import Strategy, strategies
from paceline.typical import machine_with_everything

STEPS = 6
ADAMW = {"name": "adamw", "lr": 0.03, "weight_decay": 2.0, "weight_decay_on": "matrices", "schedule": "cosine",
         "warmup_steps": 2, "final_lr": 0.1}  # fmt: skip
SGD = {"name": "sgd", "lr": 0.2, "momentum": 0.9, "weight_decay": 0.05, "weight_decay_on": "matrices",
       "schedule": "step", "step_every": 2, "warmup_steps": 1}  # fmt: skip
# How far losses may stray across frameworks, and by how much the least of the fields must change them.
TOLERANCE, FELT = 1e-3, 4e-3
# An asynchronous strategy trains as one worker does where it has one; Downpour's servers have their own optimizer.
ALONE: dict[str, dict[str, Any]] = {
    "torch-downpour": {"server_optimizer": "adamw", "lr": 0.03, "warm_up_updates": 1},
    "tf-ps": {"ahead": 1},
}
# One for each way in which updates are made; `make soak` trains all.
ALWAYS = (
    "torch-zero", "torch-ps-sync", "torch-mesh", "torch-downpour", "tf-mirrored", "tf-ps", "tf-dtensor", "jax-fsdp",
)  # fmt: skip
TRAINING = [
    chosen for chosen in strategies().values()
    if chosen.framework is not None and "cpu" in chosen.needs.devices and chosen.name != "torch-sandblaster"
]  # fmt: skip


def asked_of(chosen: Strategy, optimizer: dict[str, Any]) -> dict[str, Any]:
    workers = chosen.needs.fixed_workers or (2 if chosen.synchronous else 1)
    usual = {"strategy": chosen.name, "workers": workers, "knobs": ALONE.get(chosen.name, {}), "steps": STEPS}
    return {**usual, "optimizer": optimizer, **chosen.testing.fields}


@pytest.mark.parametrize("chosen", [
    pytest.param(chosen, id=chosen.name, marks=[
        getattr(pytest.mark, str(chosen.framework)), *[pytest.mark.soak] * (chosen.name not in ALWAYS)
    ])
    for chosen in TRAINING
])  # fmt: skip
def test_adamw_with_a_schedule_trains_as_one_worker_does(chosen: Strategy, trained: Any) -> None:
    spread = trained("transformer", **asked_of(chosen, ADAMW))
    single = trained("transformer", strategy="torch-single", steps=STEPS, optimizer=ADAMW)
    np.testing.assert_allclose(spread.losses, single.losses, rtol=TOLERANCE)


@pytest.mark.parametrize("name", [
    pytest.param("torch-ddp", marks=[pytest.mark.torch, pytest.mark.soak]),
    pytest.param("tf-single", marks=pytest.mark.tensorflow),
    pytest.param("tf-dtensor", marks=[pytest.mark.tensorflow, pytest.mark.soak]),
    pytest.param("jax-single", marks=pytest.mark.jax),
])  # fmt: skip
def test_sgd_with_a_schedule_in_steps_trains_as_one_worker_of_torch_does(name: str, trained: Any) -> None:
    spread = trained("transformer", **asked_of(strategies()[name], SGD))
    single = trained("transformer", strategy="torch-single", steps=STEPS, optimizer=SGD)
    np.testing.assert_allclose(spread.losses, single.losses, rtol=TOLERANCE)


@pytest.mark.torch
@pytest.mark.parametrize("without", [
    {"weight_decay_on": "all"}, {"weight_decay": 0.0, "weight_decay_on": "all"}, {"name": "adam"}, {"warmup_steps": 0},
    {"schedule": "constant", "final_lr": 0.0},
], ids=str)  # fmt: skip
def test_each_part_of_the_schedule_and_the_decay_is_felt(without: dict[str, Any], trained: Any) -> None:
    whole, other = (
        trained("transformer", strategy="torch-single", steps=STEPS, optimizer=optimizer)
        for optimizer in (ADAMW, {**ADAMW, **without})
    )
    assert abs(whole.losses / other.losses - 1).max() > FELT


def reason_for(**fields: Any) -> str | None:
    usual = {"workload": "transformer", "workers": 1, "global_batch": 16, "steps": 4, "optimizer": ADAMW}
    spec = complete(RunSpec.model_validate({**usual, **fields}))
    return refusal(spec, machine_with_everything(2), probe)


@pytest.mark.parametrize(("fields", "words"), [
    ({"strategy": "torch-sandblaster", "workers": 2}, "takes no weight_decay, weight_decay_on, schedule, warmup_steps"),
    ({"strategy": "torch-single", "execution": "graph", "device": "cuda"}, "leave schedule and warmup_steps out"),
    ({"strategy": "torch-single", "optimizer": {"name": "lbfgs", "weight_decay": 0.1}}, "has no weight_decay with"),
])  # fmt: skip
def test_a_schedule_or_a_decay_that_cannot_be_is_refused_with_what_to_do(fields: dict[str, Any], words: str) -> None:
    reason = reason_for(**fields)
    assert reason is not None
    assert words in reason
    assert "; leave " in reason
