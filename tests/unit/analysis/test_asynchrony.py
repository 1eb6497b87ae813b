"""What asynchrony gains and loses: each way at its best rate, beside a synchronous one with as many workers."""

from typing import Any

import pytest

from paceline.analysis.batches.asynchrony import asynchronous_searches, describe_asynchrony
from paceline.analysis.rows import summarise
from paceline.record import Epoch, Look, Rank, Record, Status
from paceline.spec import RunSpec

STEPS = 300


def record(strategy: str, reached: int | None, step_seconds: float = 0.01, stale: float | None = None,
           **fields: Any) -> Record:  # fmt: skip
    optimizer = {"name": "sgd", "lr": fields.pop("lr", 0.1)}
    spec = RunSpec(
        strategy=strategy, workers=2, global_batch=64, steps=STEPS, target_accuracy=0.9, dataset="mnist-5k",
        optimizer=optimizer, **fields,
    )  # fmt: skip
    looks = (Look(step=1, test_accuracy=0.1), Look(step=reached or STEPS, test_accuracy=0.95 if reached else 0.5))
    counted = {} if stale is None else {"staleness": {"updates": 9, "mean": stale, "max": 4, "histogram": []}}
    return Record(
        study="trial", spec=spec, repeat=0, status=Status.OK, started_at="", wall_seconds=1.0, looks=looks,
        # The middle step is one that sends nothing.
        steady_step_seconds=0.001,
        ranks=(Rank(rank=0, role="worker", cores=(0,), cpu_seconds=1.0, peak_memory_bytes=1, details=counted),),
        epochs=(Epoch(number=1, seconds=STEPS * step_seconds, steps=STEPS, samples=STEPS * 64, cpu_seconds=1.0,
                      train_loss=1.0),),
    )  # fmt: skip


def local(every: int, reached: int | None, step_seconds: float = 0.005, **fields: Any) -> Record:
    return record("torch-local-sgd", reached, step_seconds, knobs={"every": every, "warmup_steps": 0}, **fields)


def downpour(n_fetch: int, rate: float, reached: int | None, stale: float) -> Record:
    return record("torch-downpour", reached, 0.02, stale, knobs={"n_fetch": n_fetch, "lr": rate})


RUNS = [
    record("torch-ddp", 100), record("torch-ddp", 140, lr=0.05), record("torch-ddp", 120, lr=0.2),
    local(4, 120), local(4, 150, lr=0.05), local(4, 130, lr=0.2), local(32, None),
    downpour(1, 0.05, 180, 1.0), downpour(1, 0.1, 150, 1.2), downpour(1, 0.2, 190, 1.1), downpour(8, 0.1, 250, 4.5),
]  # fmt: skip


def test_each_way_stands_with_the_rate_of_its_fewest_steps_beside_the_synchronous_one() -> None:
    (search,) = asynchronous_searches(summarise(RUNS))
    assert (search.baseline.name, search.baseline.middle_steps, search.baseline.rate) == ("torch-ddp", 100, 0.1)
    found = {way.name: way for way in search.ways}
    assert set(found) == {"torch-local-sgd every=4", "torch-downpour n_fetch=1", "torch-downpour n_fetch=8"}
    assert found["torch-downpour n_fetch=1"].rate == 0.1
    assert found["torch-downpour n_fetch=1"].steps == (150,)
    assert search.missed == ("torch-local-sgd every=32",)


def test_staleness_is_counted_where_runs_count_it_and_else_follows_from_the_settings() -> None:
    (search,) = asynchronous_searches(summarise(RUNS))
    found = {way.name: (way.staleness, way.counted) for way in (search.baseline, *search.ways)}
    assert found["torch-ddp"] == (0.0, False)
    assert found["torch-downpour n_fetch=8"] == (4.5, True)
    # 0, 1, 2 and 3 steps of the other worker.
    assert found["torch-local-sgd every=4"] == (1.5, False)


def test_speed_is_of_all_steps_and_gain_and_loss_are_said() -> None:
    (search,) = asynchronous_searches(summarise(RUNS))
    way = next(way for way in search.ways if way.strategy == "torch-local-sgd")
    assert search.speed(way) == pytest.approx(2.0)
    assert search.more_steps(way) == pytest.approx(1.2)
    said = " ".join(describe_asynchrony(search))
    assert (
        "torch-local-sgd every=4 makes 2.00 times the steps/s of torch-ddp and needs 1.20 times its steps: it comes to "
        "accuracy 0.9 in 0.60 times its time" in said
    )
    assert "Never came to it within the steps of a run: torch-local-sgd every=32." in said
    assert "edge of those tried" not in said


def test_rates_at_the_edge_of_those_tried_are_said() -> None:
    (search,) = asynchronous_searches(summarise([*RUNS, downpour(1, 0.4, 20, 1.0)]))
    assert "at the edge of those tried for torch-downpour n_fetch=1 (0.4)" in " ".join(describe_asynchrony(search))


def test_without_a_synchronous_strategy_or_with_other_batches_nothing_is_compared() -> None:
    assert asynchronous_searches(summarise(RUNS[3:])) == []
    other = [run.model_copy(update={"spec": run.spec.model_copy(update={"global_batch": 128})}) for run in RUNS[:3]]
    assert asynchronous_searches(summarise([*other, *RUNS[3:]])) == []
