"""What reading batches cost a run: counted in each step, in the record, and said with what would keep up."""

import pytest

from paceline.contract.context import Process
from paceline.contract.job import InputTimes
from paceline.plan import PlannedRun
from paceline.record import OWN_ORDER, Loading
from paceline.runs.loading import SOURCE, keeping_up, slowest_loading, wait_text
from paceline.runs.measure import train
from paceline.runs.outcome import Ending, make_record
from paceline.runs.surroundings import Surroundings
from paceline.runs.wire import EpochInput, EpochResult, Measurements, ProcessStart, RankResult
from paceline.spec import RunSpec
from paceline.store import Store
from unit.runs.test_measure import ScriptedJob

MS = 1_000_000
TORCH = RunSpec(strategy="torch-ddp", global_batch=8, steps=1)
STEPS = 12


class ReadingJob(ScriptedJob):
    """Waits 3 ms for each batch, which one process reads in 4."""

    def __init__(self):
        super().__init__()
        self.input_times = InputTimes(processes=1)

    def step(self, first, count):
        super().step(first, count)
        self.input_times.waited += 3 * MS
        self.input_times.read = (self.input_times.read or 0) + 4 * MS
        self.input_times.batches += 1


def loading(**fields):
    return Loading(**{"processes": 0, "wait_seconds": 0.010, "step_seconds": 0.014, "read_seconds": 0.010, **fields})


def result(waits=(8,) * STEPS, step=10, read=8, processes=0, source="dataset"):
    """What a process left whose steps took so many milliseconds, of which it waited so many for its batches."""
    stamps = [10_000 * MS + step * MS * number for number in range(len(waits) + 1)]
    inputs = EpochInput(
        waits=[wait * MS for wait in waits], batches=len(waits), processes=processes,
        read=None if read is None else read * len(waits) * MS,
    )  # fmt: skip
    view = EpochResult(
        epoch=0, stamps=stamps, ended=stamps[-1], cpu_seconds=0.1, losses=[1.0] * len(waits), evaluation=None,
        input=inputs,
    )  # fmt: skip
    return RankResult(
        start=ProcessStart(started=0, imported=0, opened=0), measured=Measurements(epochs=[view]),
        notes={SOURCE: source},
    )  # fmt: skip


@pytest.fixture
def record_of(make_spec):
    def make(*results):
        processes = tuple(Process(rank, len(results), "worker", rank, (rank,)) for rank in range(len(results)))
        ending = Ending([0] * len(results), reports=results, log_tails=[""] * len(results))
        surroundings = Surroundings("2024-05-01T12:00:00.000+00:00", 0, 1.0, {})
        return make_record(PlannedRun(make_spec(workers=len(results)), 0), "trial", processes, ending, surroundings)

    return make


def test_the_wait_of_every_step_is_counted_in_ordinary_runs():
    measured = train(ReadingJob(), [(0, 3), (1, 2)], 8, lambda _event: None)
    first, second = (epoch.input for epoch in measured.epochs)
    assert first.waits == [3 * MS] * 3 and second.waits == [3 * MS] * 2
    assert (second.read, second.batches, second.processes) == (8 * MS, 2, 1)


def test_a_job_whose_data_lie_on_the_device_has_no_waits():
    assert train(ScriptedJob(), [(0, 3)], 8, lambda _event: None).epochs[0].input is None


def test_the_record_has_each_ranks_wait_in_each_step_and_what_reading_costs(record_of, path):
    record = record_of(result(), result(waits=(2,) * STEPS))
    assert record.input_seconds == {0: (0.008,) * STEPS, 1: (0.002,) * STEPS}
    assert record.ranks[0].loading == Loading(processes=0, wait_seconds=0.008, step_seconds=0.01, read_seconds=0.008)
    with Store.open(path) as store:
        store.add(record)
        (stored,) = store.records(with_steps=True)
    assert stored.input_seconds == record.input_seconds and stored.ranks[0].loading == record.ranks[0].loading


def test_a_run_that_waits_for_its_data_is_a_finding_with_the_processes_that_would_keep_up(record_of):
    (finding,) = (each for each in record_of(result()).findings if each.code == "input_bound")
    assert finding.text == (
        "reading data, not the strategy, sets the pace: waiting for the batch takes 80 % of a step (8 ms of 10 ms)"
    )
    assert finding.hint == (
        "one process reads a batch in 8 ms, and nobody reads ahead for fake: prepare samples beforehand, or have the "
        "source prefetch"
    )
    assert keeping_up(loading(wait_seconds=0.008, step_seconds=0.01, read_seconds=0.008), TORCH) == (
        "one process reads a batch in 8 ms, so 4 loader processes for each worker would keep up (--loader-workers 4)"
    )


def test_a_run_that_hardly_waits_has_no_finding(record_of):
    assert record_of(result(waits=(0,) * STEPS)).findings == ()


@pytest.mark.parametrize("source", ["stream", "tf.data"])
def test_an_order_of_its_own_is_said_beside_the_numbers(record_of, source):
    findings = {each.code: each for each in record_of(result(waits=(0,) * STEPS, source=source)).findings}
    assert "did not train on the same samples in the same order" in findings[OWN_ORDER].text
    assert findings[OWN_ORDER].hint.startswith("compare times and not losses")


def test_enough_processes_read_a_batch_in_the_rest_of_a_step():
    assert loading().enough_processes == 3
    assert loading(read_seconds=0.004).enough_processes == 1
    # 4 ms are left for computing: 3 processes of 10 ms each give a batch in 3.3 ms.
    assert 0.010 / loading().enough_processes <= 0.014 - 0.010


def test_where_reading_cannot_be_seen_the_processes_that_are_there_give_one_batch_a_step():
    limited = loading(processes=2, read_seconds=None, wait_seconds=0.007)
    assert limited.enough_processes == 4
    assert keeping_up(limited, TORCH) == "4 loader processes for each worker would keep up (--loader-workers 4)"


def test_processes_that_should_be_enough_lack_cores():
    crowded = loading(processes=4)
    assert keeping_up(crowded, TORCH) == (
        "one process reads a batch in 10 ms, so 4 loader processes would keep up if they had cores of their own; "
        "give --cores-per-worker more"
    )


def test_the_rank_that_waits_longest_stands_for_the_run():
    ranks = [loading(wait_seconds=0.001), None, loading(wait_seconds=0.002)]
    assert slowest_loading(ranks) is ranks[2] and slowest_loading([None]) is None
    assert wait_text(loading()) == "waiting for the batch takes 71 % of a step (10 ms of 14 ms)"
