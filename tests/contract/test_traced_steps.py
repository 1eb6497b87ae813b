"""Instrumented runs: what they note adds up to the step, says who sends, and leaves the training as it was."""

from typing import Any

import numpy as np
import pytest

from contract.conftest import WORKLOADS
from paceline.breakdown import PARTS
from paceline.contract.context import spec_facts
from paceline.plan import complete
from paceline.spec import RunSpec
from paceline.strategies import Strategy, strategies

STRATEGIES = [chosen for chosen in strategies().values() if chosen.framework is not None]
# What the parts of a step may come to beside the step itself.
TOLERANCE = 0.02
ENOUGH_STEPS = 8


def spec_of(strategy: Strategy, workers: int) -> RunSpec:
    fields = {"steps": 20, **WORKLOADS["mnist-small"], **strategy.testing.fields}
    # An instrumented run is of one epoch, and its first steps count for nothing.
    if fields["train_samples"] < ENOUGH_STEPS * fields["global_batch"]:
        fields["dataset_copies"] = ENOUGH_STEPS
    return complete(RunSpec.parse({**fields, "strategy": strategy.name, "workers": workers}, "contract"))


def is_repeat(strategy: Strategy, workers: int) -> bool:
    """Whether another strategy of its framework shows the same: one worker has nobody to send to."""
    return workers == 1 and strategy.name not in ("torch-single", "torch-ddp", "tf-single", "jax-single", "tf-ps")


def cases(*worker_counts: int) -> list[Any]:
    """Every strategy that can be taken apart with so many workers."""
    return [
        pytest.param(
            strategy,
            workers,
            id=f"{strategy.name}-{workers}",
            marks=[getattr(pytest.mark, str(strategy.framework))] + [pytest.mark.soak] * is_repeat(strategy, workers),
        )
        for strategy in STRATEGIES
        for workers in worker_counts
        if strategy.needs.fixed_workers in (None, workers)
        and strategy.needs.can_be_instrumented(spec_of(strategy, workers))
    ]


# One worker of each framework, two of every other strategy; the timed runs are those of other contract tests too.
SAME_TRAINING = [
    case
    for case in cases(1, 2)
    if case.values[0].synchronous and case.values[1] == (case.values[0].needs.fixed_workers or 2)
]


def sends(strategy: Strategy, workers: int) -> bool:
    spec = spec_of(strategy, workers)
    return any(group.messages for group in strategy.footprint(spec, spec_facts(spec)).groups)


def instrumented(strategy: Strategy, workers: int, trained: Any) -> Any:
    return trained.again(spec_of(strategy, workers).model_copy(update={"instrumented": True}))


@pytest.mark.parametrize(("strategy", "workers"), cases(1, 2))
def test_the_breakdown_of_every_rank_adds_up_to_its_step(strategy: Strategy, workers: int, trained: Any) -> None:
    record = instrumented(strategy, workers, trained).record
    stepping = {rank for rank, seconds in record.step_seconds.items() if seconds}
    led = {rank.rank for rank in record.ranks if rank.role == "worker"}
    # A process that drives several workers is taken apart as one, or worker by worker; of a chief, its workers are.
    assert {part.rank for part in record.breakdown} in (stepping, set(range(workers)), led)
    for part in record.breakdown:
        seconds = {name: getattr(part, name) for name in (*PARTS, "communication", "overlapped")}
        assert min(seconds.values()) >= 0, seconds
        assert sum(seconds[name] for name in PARTS) == pytest.approx(part.step, rel=TOLERANCE)
        assert part.step > 0


@pytest.mark.parametrize(("strategy", "workers"), cases(1))
def test_the_breakdown_of_one_worker_has_no_communication(strategy: Strategy, workers: int, trained: Any) -> None:
    if sends(strategy, workers):
        pytest.skip("one worker sends too: to a server")
    for part in instrumented(strategy, workers, trained).record.breakdown:
        assert (part.communication, part.waiting, part.sent_bytes) == (0, 0, 0)


@pytest.mark.parametrize(("strategy", "workers"), cases(2))
def test_the_breakdown_of_two_workers_has_communication(strategy: Strategy, workers: int, trained: Any) -> None:
    breakdown = instrumented(strategy, workers, trained).record.breakdown
    assert max(part.communication for part in breakdown) > 0
    assert max(part.sent_bytes for part in breakdown) > 0


@pytest.mark.parametrize(("strategy", "workers"), SAME_TRAINING)
def test_a_breakdown_is_of_the_same_training(strategy: Strategy, workers: int, trained: Any) -> None:
    noted = instrumented(strategy, workers, trained).losses
    timed = trained.again(spec_of(strategy, workers)).losses
    assert len(noted) > 0
    shared = min(len(noted), len(timed))
    np.testing.assert_allclose(noted[:shared], timed[:shared], rtol=strategy.testing.tolerance)
