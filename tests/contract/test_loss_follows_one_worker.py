"""The backbone: every synchronous strategy follows one worker on the same global batch, and ends with its weights."""

from typing import Any

import numpy as np
import pytest

from paceline.strategies import Strategy, strategies

SYNCHRONOUS = [chosen for chosen in strategies().values() if chosen.synchronous and chosen.framework is not None]
SPREAD = [chosen for chosen in SYNCHRONOUS if chosen.needs.fixed_workers is None]
# Adam divides each gradient by its own size, so rounding in a gradient near zero moves a weight by a share of the
# learning rate; one hundredth of what 20 steps of 0.001 can move a weight at all.
WEIGHT_TOLERANCE = 2e-4


def is_repeat(strategy: Strategy, workers: int, workload: str) -> bool:
    """Whether two workers show the same: only more of them make several rows or groups, and a stage in the middle.

    One workload is enough for that. Stages, servers and knobs with more workers have tests of their own.
    """
    differs = strategy.family == "hybrid" or strategy.name == "torch-pipeline"
    return workers > 2 and not (differs and strategy.framework == "torch" and workload == "mnist-small")


def cases(chosen: list[Strategy], workers: tuple[int, ...]) -> list[Any]:
    return [
        pytest.param(
            strategy, count, workload,
            id=f"{strategy.name}-{count}-{workload}",
            marks=[getattr(pytest.mark, str(strategy.framework))]
            + [pytest.mark.soak] * is_repeat(strategy, count, workload),
        )
        for strategy in chosen
        for count in workers
        for workload in ("mnist-small", "transformer")
    ]  # fmt: skip


@pytest.mark.parametrize(("strategy", "workers", "workload"), cases(SPREAD, (2, 4)))
def test_loss_follows_one_worker_step_by_step(strategy: Strategy, workers: int, workload: str, trained: Any) -> None:
    spread = trained(workload, strategy=strategy.name, workers=workers, **strategy.testing.fields)
    single = trained.again(strategy.testing.reference(spread.record.spec))
    assert len(single.losses) == len(spread.losses) == 20
    assert single.losses[-1] < 0.98 * single.losses[0]
    np.testing.assert_allclose(spread.losses, single.losses, rtol=strategy.testing.tolerance)
    last, expected = spread.record.epochs[-1], single.record.epochs[-1]
    assert last.test_loss == pytest.approx(expected.test_loss, rel=10 * strategy.testing.tolerance)
    assert last.test_accuracy == pytest.approx(expected.test_accuracy, abs=0.01)


@pytest.mark.parametrize(("strategy", "workers", "workload"), cases(SPREAD, (2, 4)))
def test_loss_aside_the_weights_end_the_same(strategy: Strategy, workers: int, workload: str, trained: Any) -> None:
    spread = trained(workload, strategy=strategy.name, workers=workers, **strategy.testing.fields)
    single = trained.again(strategy.testing.reference(spread.record.spec))
    assert spread.weights.keys() == single.weights.keys()
    for name, array in single.weights.items():
        np.testing.assert_allclose(spread.weights[name], array, atol=WEIGHT_TOLERANCE, err_msg=name)


@pytest.mark.parametrize("memory_format", ["channels_last", "contiguous"])
@pytest.mark.torch
def test_loss_is_the_same_in_both_memory_formats(memory_format: str, trained: Any) -> None:
    plain = trained("mnist-small", strategy="torch-single", memory_format="contiguous")
    other = trained("mnist-small", strategy="torch-single", memory_format=memory_format)
    np.testing.assert_allclose(other.losses, plain.losses, rtol=1e-4)
    spread = trained("mnist-small", strategy="torch-ddp", workers=2, memory_format=memory_format)
    np.testing.assert_allclose(spread.losses, plain.losses, rtol=1e-4)


@pytest.mark.torch
def test_loss_differs_when_the_seed_differs(trained: Any) -> None:
    first, second = (trained("mnist-small", strategy="torch-single", seed=seed) for seed in (0, 1))
    assert abs(first.losses[0] - second.losses[0]) > 1e-3
