"""Made-up curves whose regimes are known give them back, and searches choose a learning rate for each batch."""

import numpy as np
import pytest

from paceline.analysis.batches.agreement import compare_with_noise
from paceline.analysis.batches.regimes import batch_searches, describe_search, fit_regimes
from paceline.analysis.batches.time_to_target import target_times
from paceline.analysis.rows import summarise
from paceline.record import Epoch, Look, Rank, Record, Status
from paceline.spec import RunSpec
from unit.figures import example_records

BATCHES = [2.0**power for power in range(3, 13)]


def curve(least: float, critical: float, noise: float = 0.0, seeds: int = 1) -> list[tuple[float, float]]:
    random = np.random.default_rng(5)
    return [
        (batch, least * (1 + critical / batch) * float(np.exp(random.normal(0, noise))))
        for batch in BATCHES
        for _ in range(seeds)
    ]


@pytest.mark.parametrize(("least", "critical"), [(50, 100), (200, 30), (20, 900)])
def test_known_regimes_are_found_in_exact_curves(least: float, critical: float) -> None:
    regimes = fit_regimes(curve(least, critical))
    assert regimes is not None
    assert regimes.critical_batch.value == pytest.approx(critical, rel=0.03)
    assert regimes.least_steps == pytest.approx(least, rel=0.03)
    # Doubling a batch at the ends of the first and the last regime saves 1.8 and 1.1 times.
    first, last = regimes.perfect_up_to.value, regimes.little_from.value
    assert regimes.steps(first) / regimes.steps(2 * first) == pytest.approx(1.8)
    assert regimes.steps(last) / regimes.steps(2 * last) == pytest.approx(1.1)


@pytest.mark.parametrize(("least", "critical"), [(50, 100), (200, 30), (20, 900)])
def test_known_regimes_are_within_the_interval_of_noisy_curves(least: float, critical: float) -> None:
    regimes = fit_regimes(curve(least, critical, noise=0.1, seeds=3))
    assert regimes is not None
    found = regimes.critical_batch
    assert found.low is not None and found.high is not None
    assert found.low < critical < found.high
    assert found.high / found.low < 2
    assert regimes.perfect_up_to.low == pytest.approx(found.low / 8)


@pytest.mark.parametrize(
    ("batches", "seeds"), [(BATCHES[::2][:4], 1), (BATCHES[::2], 2), (BATCHES, 3)], ids=["tiny", "small", "full"]
)
def test_nine_of_ten_intervals_hold_the_critical_batch_and_the_steps(batches: list[float], seeds: int) -> None:
    """Also where the seeds of a batch share an error, as from the learning rate that was chosen for it."""
    random, held, steps_held, trials = np.random.default_rng(7), 0, 0, 200
    for _ in range(trials):
        points = []
        for batch in batches:
            shared = random.normal(0, 0.1)
            points += [
                (batch, 50 * (1 + 100 / batch) * float(np.exp(shared + random.normal(0, 0.1)))) for _ in range(seeds)
            ]
        regimes = fit_regimes(points)
        assert regimes is not None
        held += (regimes.critical_batch.low or 0) <= 100 <= (regimes.critical_batch.high or np.inf)
        steps = regimes.steps_interval(64)
        assert steps.low is not None and steps.high is not None and steps.low < steps.value < steps.high
        steps_held += steps.low <= 50 * (1 + 100 / 64) <= steps.high
    assert 0.84 < held / trials < 0.96
    assert 0.84 < steps_held / trials < 0.96


def test_intervals_of_noisier_curves_are_wider() -> None:
    widths = []
    for noise in (0.02, 0.2):
        regimes = fit_regimes(curve(50, 100, noise=noise, seeds=2))
        assert regimes is not None and regimes.critical_batch.high and regimes.critical_batch.low
        widths.append(regimes.critical_batch.high / regimes.critical_batch.low)
    assert widths[1] - 1 > 5 * (widths[0] - 1)


def test_a_curve_without_an_end_of_perfect_scaling_bounds_the_critical_batch_from_below_only() -> None:
    regimes = fit_regimes([(batch, 1e6 / batch) for batch in BATCHES])
    assert regimes is not None
    assert regimes.critical_batch.high is None
    assert regimes.critical_batch.value > max(BATCHES)


def test_two_batches_are_too_few() -> None:
    assert fit_regimes(curve(50, 100)[:2]) is None
    assert fit_regimes([]) is None


def record(batch: int, lr: float, seed: int, reached: int | None, steps: int = 500) -> Record:
    spec = RunSpec(
        global_batch=batch, steps=steps, seed=seed, target_accuracy=0.9, optimizer={"name": "sgd", "lr": lr}
    )  # fmt: skip
    looks = (Look(step=1, test_accuracy=0.1), Look(step=reached or steps, test_accuracy=0.95 if reached else 0.5))
    return Record(
        study="trial", spec=spec, repeat=0, status=Status.OK, started_at="", wall_seconds=1.0, looks=looks,
        steady_step_seconds=0.5,
        ranks=(Rank(rank=0, role="worker", cores=(0,), cpu_seconds=1.0, peak_memory_bytes=1),),
        epochs=(Epoch(number=1, seconds=1.0, steps=steps, samples=100, cpu_seconds=1.0, train_loss=1.0),),
    )  # fmt: skip


def test_each_batch_gets_the_rate_with_the_fewest_steps_over_seeds_that_all_came_to_the_target() -> None:
    runs = [
        *(record(8, 0.1, seed, reached) for seed, reached in enumerate((100, 120))),
        *(record(8, 0.3, seed, reached) for seed, reached in enumerate((50, None))),
        *(record(8, 0.01, seed, reached) for seed, reached in enumerate((200, 220))),
        record(16, 0.1, 0, 70), record(32, 0.3, 0, 40), record(64, 0.3, 0, None),
    ]  # fmt: skip
    (search,) = batch_searches(summarise(runs))
    small, middle, large = search.outcomes
    assert (small.lr, small.steps, small.at_the_edge) == (0.1, (100, 120), False)
    assert (middle.lr, middle.steps) == (0.1, (70,))
    assert (large.lr, large.steps) == (0.3, (40,))
    assert small.rates == (0.01, 0.1, 0.3)
    assert small.reaching_rates == (0.01, 0.1)
    assert search.missed == (64,)
    assert search.target == "accuracy 0.9"
    assert search.regimes is not None


def test_runs_without_a_target_or_with_one_batch_are_no_search() -> None:
    assert batch_searches(summarise([record(8, 0.1, 0, 10)])) == []
    plain = record(8, 0.1, 0, 10)
    without = plain.model_copy(update={"spec": plain.spec.model_copy(update={"target_accuracy": None})})
    assert batch_searches(summarise([without, record(16, 0.1, 0, 10)])) == []


def test_runs_of_other_settings_are_other_searches() -> None:
    others = [record(8, 0.1, 0, 10, steps=700), record(16, 0.1, 0, 9)]
    others = [
        run.model_copy(update={"spec": run.spec.model_copy(update={"workload": "mnist-large"})}) for run in others
    ]
    assert len(batch_searches(summarise([record(8, 0.1, 0, 10), record(16, 0.1, 0, 8), *others]))) == 2


def test_what_was_found_is_said_with_what_the_search_leaves_open() -> None:
    runs = [record(batch, 0.1, 0, round(50 * (1 + 100 / batch))) for batch in (8, 16, 32, 64, 128, 256, 512)]
    (search,) = batch_searches(summarise([*runs, record(16, 0.3, 0, 500), record(1024, 0.1, 0, None)]))
    said = " ".join(describe_search(search))
    assert "To accuracy 0.9, doubling the batch nearly halves the steps up to about 1" in said
    assert "From about 4" in said and ("at least 50 steps remain" in said or "at least 51 steps remain" in said)
    assert "Batch 1,024 never came to it within the budget of a run" in said
    assert "at the edge of those tried for batch 16 (0.1)" in said


def test_too_few_batches_are_said_to_be_too_few() -> None:
    (search,) = batch_searches(summarise([record(8, 0.1, 0, 10), record(16, 0.1, 0, 8)]))
    assert describe_search(search) == ["2 of the batches came to accuracy 0.9; at least 3 must for their regimes."]


def test_time_to_the_target_goes_on_beyond_what_was_measured_until_workers_hardly_help() -> None:
    runs = [record(batch, 0.1, 0, round(50 * (1 + 100 / batch))) for batch in (8, 16, 32, 64, 128, 256)]
    beside = [
        record(8, 0.1, 0, None).model_copy(
            update={"spec": RunSpec(strategy="torch-ddp", workers=workers, local_batch=16, steps=500),
                    "steady_step_seconds": seconds, "looks": ()}
        )
        for workers, seconds in ((1, 0.1), (2, 0.12))
    ]  # fmt: skip
    rows = summarise([*runs, *beside])
    (search,) = batch_searches(rows)
    times = target_times(search, rows)
    assert [(time.workers, time.measured) for time in times[:3]] == [(1, True), (2, True), (4, False)]
    assert times[0].seconds == pytest.approx(50 * (1 + 100 / 16) * 0.1, rel=0.05)
    assert times[2].seconds == pytest.approx(50 * (1 + 100 / 64) * 0.12, rel=0.05)
    assert {time.local_batch for time in times} == {16}
    assert max(time.workers for time in times) * 16 <= 2 * 450 * 1.1


def test_the_noise_scale_of_the_same_training_is_compared_with_the_critical_batch() -> None:
    runs = [record(batch, 0.1, 0, round(50 * (1 + 100 / batch))) for batch in (8, 16, 32, 64, 128, 256)]
    spec = RunSpec(strategy="torch-ddp", workers=2, local_batch=64, epochs=3, noise_scale=True)
    rows = summarise([*runs, example_records.record(spec)])
    (search,) = batch_searches(rows)
    said = compare_with_noise(search, rows)
    assert said is not None and said.startswith(
        "The noise scale of its gradients was 80 samples (40 to 160 samples in single epochs): the critical batch is 1."
    )
    assert said.endswith("times it, outside of its interval.")
    other = example_records.record(spec.model_copy(update={"dataset": "synthetic"}))
    assert compare_with_noise(search, summarise([*runs, other])) is None
    assert compare_with_noise(search, summarise(runs)) is None
