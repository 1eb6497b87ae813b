"""Across frameworks: the same weights, batches and optimizer give the same losses and the same accuracy."""

from typing import Any

import numpy as np
import pytest

from paceline.contract.strategy import on_baseline
from paceline.spec import RunSpec
from paceline.strategies import Strategy, strategies

SYNCHRONOUS = [chosen for chosen in strategies().values() if chosen.synchronous and chosen.framework is not None]
# Kernels of different frameworks add in different orders; over 20 steps of Adam that grows to about this much.
ACROSS_FRAMEWORKS = 1e-3
ONE_POINT = 0.01


def cases(chosen: list[Strategy]) -> list[Any]:
    return [pytest.param(one, id=one.name, marks=getattr(pytest.mark, str(one.framework))) for one in chosen]


def usual(one: Strategy) -> dict[str, Any]:
    """The strategy as users name it."""
    return {"strategy": one.name, "workers": one.needs.fixed_workers or 2, **one.testing.fields}


@pytest.mark.parametrize("workload", ["mnist-small", "transformer"])
@pytest.mark.parametrize("strategy", cases([one for one in SYNCHRONOUS if one.framework != "torch"]))
def test_loss_is_that_of_torch_step_by_step(strategy: Strategy, workload: str, trained: Any) -> None:
    pytest.importorskip("torch", reason="PyTorch is the reference")
    found = trained(workload, **usual(strategy))
    torch = trained.again(on_baseline(found.record.spec))
    assert len(torch.losses) == len(found.losses) == 20
    np.testing.assert_allclose(found.losses, torch.losses, rtol=ACROSS_FRAMEWORKS)


# That the others evaluate as one worker does is held after each of their shorter runs.
LONGER = ("torch-single", "tf-single", "jax-single")


@pytest.mark.parametrize(
    "strategy",
    [
        *cases([one for one in SYNCHRONOUS if one.name in LONGER]),
        *(
            pytest.param(*case.values, id=case.id, marks=[*case.marks, pytest.mark.soak])
            for case in cases([one for one in SYNCHRONOUS if not one.testing.fields and one.name not in LONGER])
        ),
    ],
)
def test_accuracy_after_two_epochs_is_that_of_torch(strategy: Strategy, trained: Any) -> None:
    pytest.importorskip("torch", reason="PyTorch is the reference")
    two_epochs = {"dataset": "mnist-5k", "train_samples": None, "global_batch": 256, "steps": None, "epochs": 2}
    found = trained("mnist-small", **usual(strategy), **two_epochs)
    reference: RunSpec = on_baseline(found.record.spec)
    accuracy, wanted = (run.record.epochs[-1].test_accuracy for run in (found, trained.again(reference)))
    assert wanted > 0.75
    assert abs(accuracy - wanted) <= ONE_POINT
