"""Models of tokens learn the real text that ships with Paceline, the same in every framework."""

from typing import Any

import numpy as np
import pytest

from paceline.plan import complete, refusal
from paceline.runs.probe import probe
from paceline.spec import RunSpec
from paceline.systems import local_system

SIZE = {"depth": 2, "width": 64, "heads": 4}
TRAINING: dict[str, Any] = {
    "dataset": "text", "options": SIZE, "input_shape": [32], "global_batch": 32, "steps": 60,
    "optimizer": {"name": "adamw", "lr": 0.01, "schedule": "cosine", "warmup_steps": 5},
}  # fmt: skip
# Of 256 bytes; frequencies of English letters alone come to about 3.
KNOWS_NOTHING, LEARNED = np.log(256), 2.9
# Rounding is multiplied by every step of so steep a descent.
TOLERANCE = 0.02


def text_run(workload: str, strategy: str) -> RunSpec:
    return complete(RunSpec.parse({"workload": workload, "strategy": strategy, **TRAINING}, "test"))


@pytest.mark.torch
@pytest.mark.parametrize("workload", ["transformer", "gpt", "llama"])
def test_a_model_of_tokens_learns_the_text(workload: str, trained: Any) -> None:
    losses = trained.again(text_run(workload, "torch-single")).losses
    assert losses[0] == pytest.approx(KNOWS_NOTHING, rel=0.15)
    assert np.mean(losses[-5:]) < LEARNED


# The transformer always; `make soak` trains the others too.
@pytest.mark.parametrize(("workload", "strategy"), [
    pytest.param(workload, strategy, marks=[mark, *[pytest.mark.soak] * (workload != "transformer")])
    for workload in ("transformer", "gpt", "llama")
    for strategy, mark in (("tf-single", pytest.mark.tensorflow), ("jax-single", pytest.mark.jax))
])  # fmt: skip
def test_every_framework_learns_it_alike(workload: str, strategy: str, trained: Any) -> None:
    spec = text_run(workload, strategy)
    if (reason := refusal(spec, local_system(), probe)) is not None:
        assert workload in reason
        return
    single = trained.again(text_run(workload, "torch-single"))
    np.testing.assert_allclose(trained.again(spec).losses, single.losses, rtol=TOLERANCE)
