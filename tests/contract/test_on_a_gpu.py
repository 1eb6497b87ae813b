"""The same promise on a CUDA device: what fits on the GPUs at hand follows one worker on the same global batch."""

from typing import Any

import numpy as np
import pytest

from paceline.strategies import Strategy, strategies
from paceline.systems import local_system

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not local_system().gpus, reason="needs a CUDA device")]

SYNCHRONOUS = [chosen for chosen in strategies().values() if chosen.synchronous and chosen.framework == "torch"]


def cases() -> list[Any]:
    """Two and four workers for a strategy whose workers can share a GPU; as many workers as GPUs, at most 4, else."""
    found = []
    for chosen in SYNCHRONOUS:
        alone = min(4, max(1, len(local_system().gpus)))
        counts = (chosen.fixed_workers,) if chosen.fixed_workers else (2, 4) if chosen.shares_gpu else (alone,)
        found += [pytest.param(chosen, count, id=f"{chosen.name}-{count}") for count in counts]
    return found


@pytest.mark.parametrize("workload", ["mnist-small", "transformer"])
@pytest.mark.parametrize(("strategy", "workers"), cases())
def test_loss_on_a_gpu_follows_one_worker(strategy: Strategy, workers: int, workload: str, trained: Any) -> None:
    spread = trained(workload, strategy=strategy.name, workers=workers, device="cuda", **strategy.tested_with)
    single = trained.again(strategy.reference(spread.record.spec))
    assert len(single.losses) == len(spread.losses) == 20
    np.testing.assert_allclose(spread.losses, single.losses, rtol=strategy.tolerance)


@pytest.mark.parametrize("workload", ["mnist-small", "transformer"])
def test_loss_on_a_gpu_is_that_of_the_cpu(workload: str, trained: Any) -> None:
    there, here = (trained(workload, strategy="torch-single", device=device) for device in ("cuda", "cpu"))
    np.testing.assert_allclose(there.losses, here.losses, rtol=1e-4)
