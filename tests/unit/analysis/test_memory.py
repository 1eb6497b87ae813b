"""What each process held, and of what it consisted."""

import pytest

from paceline.analysis.frame import flat_row
from paceline.analysis.memory import computed_bytes, rank_memory
from paceline.analysis.rows import summarise
from paceline.record import Memory, Rank
from paceline.spec import RunSpec

SMALL_CNN = {"workload": "mnist-small", "dataset": "mnist-5k", "global_batch": 64, "epochs": 1}


def rank(number=0, role="worker", held=None, **bytes_of):
    fields = {"baseline_bytes": 100, "steady_bytes": 130, "peak_bytes": 150, "final_bytes": 140, **bytes_of}
    details = {"held_bytes": held} if held else {}
    return Rank(rank=number, role=role, cores=(0,), cpu_seconds=1.0, peak_memory_bytes=999, memory=Memory(**fields),
                details=details)  # fmt: skip


@pytest.fixture
def with_ranks(make_record):
    """A record with these processes."""
    return lambda *ranks, **fields: make_record(**fields).model_copy(update={"ranks": ranks})


def test_memory_is_counted_above_the_frameworks_own(with_ranks):
    (one,) = rank_memory([with_ranks(rank())])
    assert (one.baseline_bytes, one.steady_bytes, one.peak_bytes, one.final_bytes) == (100, 30, 50, 40)


def test_memory_below_the_frameworks_own_is_none_at_all(with_ranks):
    (one,) = rank_memory([with_ranks(rank(steady_bytes=90))])
    assert one.steady_bytes == 0


def test_memory_is_the_median_over_repeats(with_ranks):
    records = [with_ranks(rank(peak_bytes=peak), repeat=repeat) for repeat, peak in enumerate((110, 190, 120))]
    assert rank_memory(records)[0].peak_bytes == 20


def test_parameters_and_optimizer_are_those_that_were_measured(with_ranks):
    workers = (rank(0, held={"parameters": 8, "optimizer": 16}), rank(1, "server", {"parameters": 4, "optimizer": 8}))
    first, second = rank_memory([with_ranks(*workers)])
    assert (first.parameter_bytes, first.optimizer_bytes) == (8, 16)
    assert (second.role, second.parameter_bytes) == ("server", 4)


def test_the_allocator_of_a_gpu_is_asked_where_there_is_one(with_ranks):
    told = rank().model_copy(update={"details": {"device_peak_bytes": 5000}})
    assert rank_memory([with_ranks(told)])[0].device_peak_bytes == 5000
    assert rank_memory([with_ranks(rank())])[0].device_peak_bytes is None


def test_gradients_and_activations_are_computed_for_each_process():
    ddp = computed_bytes(RunSpec(strategy="torch-ddp", workers=2, **SMALL_CNN))
    assert len(ddp) == 2
    assert ddp[0] == ddp[1]
    one = computed_bytes(RunSpec(strategy="torch-single", **SMALL_CNN))
    assert one[0][0] == ddp[0][0] > 0
    assert one[0][1] == pytest.approx(2 * ddp[0][1])


def test_a_process_that_drives_several_workers_holds_what_all_of_them_do():
    both = computed_bytes(RunSpec(strategy="tf-mirrored", workers=2, **SMALL_CNN))
    each = computed_bytes(RunSpec(strategy="torch-ddp", workers=2, **SMALL_CNN))
    assert both == [(pytest.approx(2 * each[0][0]), pytest.approx(2 * each[0][1]))]


def test_nothing_is_computed_for_a_strategy_that_is_not_known():
    assert computed_bytes(RunSpec(strategy="fake", global_batch=64, epochs=1)) == []
    assert computed_bytes(RunSpec(strategy="none-such", **SMALL_CNN)) == []


def test_a_table_has_the_process_that_held_most(with_ranks):
    (row,) = summarise([with_ranks(rank(0), rank(1, peak_bytes=300))])
    values = flat_row(row)
    assert (values["memory_baseline_bytes"], values["memory_peak_bytes"]) == (100, 200)


def test_a_record_from_before_memory_was_kept_has_none(make_record):
    (row,) = summarise([make_record()])
    assert row.memory == ()
    assert flat_row(row)["memory_peak_bytes"] is None
