"""How soon a run is good enough, where it ends, and how stale its gradients are."""

import pytest

from paceline.analysis.convergence import default_target, run_outcome, staleness
from paceline.analysis.rows import SummaryOptions, summarise
from paceline.record import Rank


@pytest.fixture
def trained(make_record):
    """A record whose two epochs, of 2 s and 1 s, came to these accuracies."""

    def make(*accuracies, **fields):
        record = make_record(**fields)
        pairs = zip(record.epochs, accuracies, strict=True)
        return record.model_copy(
            update={"epochs": tuple(epoch.model_copy(update={"test_accuracy": one}) for epoch, one in pairs)}
        )

    return make


def convergence(*records, target=None):
    return [row.convergence for row in summarise(records, options=SummaryOptions(target_accuracy=target))]


def worker(number, role="worker", **summary):
    return Rank(rank=number, role=role, cores=(0,), cpu_seconds=1.0, peak_memory_bytes=1,
                details={"staleness": summary} if summary else {})  # fmt: skip


def test_the_target_is_reached_after_the_first_epoch_that_is_good_enough(trained):
    (one,) = convergence(trained(0.5, 0.9), target=0.5)
    assert (one.epochs_to_target, one.seconds_to_target) == (1, pytest.approx(2.0))
    (one,) = convergence(trained(0.5, 0.9), target=0.6)
    assert (one.epochs_to_target, one.seconds_to_target) == (2, pytest.approx(3.0))


def test_a_target_that_a_repeat_missed_has_no_time_but_a_count(trained):
    (one,) = convergence(trained(0.5, 0.9, repeat=0), trained(0.5, 0.7, repeat=1), target=0.8)
    assert (one.runs_to_target, one.epochs_to_target, one.seconds_to_target) == (1, None, None)


def test_the_default_target_is_near_what_synchronous_runs_come_to(trained):
    records = [trained(0.1, final) for final in (0.6, 0.8, 0.9)]
    stray = trained(0.1, 0.2, strategy="torch-downpour")
    assert default_target(map(run_outcome, [*records, stray])) == 0.76
    assert default_target([run_outcome(stray)]) == 0.19
    assert default_target([]) is None


def test_each_setting_has_a_target_of_its_own(trained):
    found = convergence(trained(0.1, 0.8), trained(0.1, 0.4, global_batch=200))
    assert {one.target_accuracy for one in found} == {0.76, 0.38}


def test_the_final_accuracy_has_its_range_over_seeds(trained):
    one, other = convergence(trained(0.1, 0.8, seed=1), trained(0.1, 0.9, seed=2))
    assert (one.seeds, one.final_accuracy_low, one.final_accuracy_high) == (2, 0.8, 0.9)
    assert one.final_accuracy == other.final_accuracy == pytest.approx(0.85)


def test_staleness_is_the_workers_mean_over_updates_and_the_most_of_any(trained):
    ranks = (worker(0, updates=10, mean=1.0, max=3), worker(1, updates=30, mean=2.0, max=2),
             worker(2, "server", updates=40, mean=9.0, max=9))  # fmt: skip
    record = trained(0.1, 0.2).model_copy(update={"ranks": ranks})
    assert staleness(record) == (pytest.approx(1.75), 3.0)
    (one,) = convergence(record)
    assert (one.staleness_mean, one.staleness_max) == (pytest.approx(1.75), 3.0)


def test_a_synchronous_run_has_no_staleness(trained):
    assert staleness(trained(0.1, 0.2)) is None
