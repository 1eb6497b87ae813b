"""Steps as tasks on streams, in cases that can be worked out on paper."""

from itertools import pairwise

import pytest

from paceline.costs.footprint import Stages
from paceline.predict.pipelines import messages_sent, pipeline_order, pipeline_seconds
from paceline.predict.simulate import Task, largest_of, overlap, serve, simulate


def test_streams_take_their_tasks_in_order_and_wait_for_what_they_need() -> None:
    times = simulate([Task(0, False, 2.0), Task(0, True, 3.0, after=(0,)), Task(0, False, 1.0)])
    assert times.begins == (0, 2, 2)
    assert times.ends == (2, 5, 3)
    assert times.total == 5


def test_a_transfer_slows_the_computation_beside_it() -> None:
    times = simulate([Task(0, True, 2.0), Task(0, False, 3.0)], interference=1.0)
    assert times.ends == pytest.approx((2, 4))


def test_a_transfer_of_one_rank_does_not_slow_another() -> None:
    assert simulate([Task(0, True, 2.0), Task(1, False, 3.0)], interference=1.0).total == pytest.approx(3)


@pytest.mark.parametrize("interference", [0.0, 0.5])
def test_tasks_in_a_circle_are_refused(interference: float) -> None:
    with pytest.raises(ValueError, match="wait for each other"):
        simulate([Task(0, False, 1.0, after=(1,)), Task(1, False, 1.0, after=(0,))], interference)


@pytest.mark.parametrize("interference", [0.0, 0.1, 1.0, 30.0])
@pytest.mark.parametrize(
    ("segments", "transfers"),
    [
        ([1.0, 1.0, 1.0], [0.5, 0.5, 0.5]),
        ([1.0, 1.0, 1.0], [2.0, 2.0, 2.0]),
        ([0.1, 5.0, 0.0], [3.0, 1.0, 0.0]),
        ([2.0], [7.0]),
    ],
)
def test_the_closed_form_of_overlap_is_what_the_simulator_says(
    segments: list[float], transfers: list[float], interference: float
) -> None:
    tasks: list[Task] = []
    for work, transfer in zip(segments, transfers, strict=True):
        tasks.append(Task(0, False, work))
        tasks.append(Task(0, True, transfer, after=(len(tasks) - 1,)))
    times = simulate(tasks, interference)
    computed, sent = overlap(segments, transfers, interference)
    assert computed == pytest.approx(max(times.ends[::2]))
    assert sent == pytest.approx(max(times.ends[1::2]))


def test_transfers_that_fit_behind_the_computation_cost_nothing_but_the_last() -> None:
    assert overlap([1.0, 1.0, 1.0], [0.5, 0.5, 0.5]) == (3.0, 3.5)


def test_transfers_that_do_not_fit_are_as_long_as_all_of_them_after_the_first_segment() -> None:
    assert overlap([1.0, 1.0, 1.0], [4.0, 4.0, 4.0])[1] == 13


def pipeline_span(schedule: str, workers: int, microbatches: int, chunks: int = 1, back: float = 2.0) -> float:
    """The span of a pipeline of equal stages whose forward pass takes one second in all of a worker's stages."""
    orders = [pipeline_order(schedule, worker, workers, microbatches, chunks) for worker in range(workers)]
    numbers = {}
    for worker, order in enumerate(orders):
        for backward, item in order:
            microbatch, chunk = divmod(item, chunks)
            numbers[backward, chunk * workers + worker, microbatch] = len(numbers)
    last, tasks = workers * chunks - 1, []
    for (backward, stage, microbatch), _ in numbers.items():
        if backward:
            needed = (False, last, microbatch) if stage == last else (True, stage + 1, microbatch)
            after = (numbers[needed],)
        else:
            after = (numbers[False, stage - 1, microbatch],) if stage else ()
        tasks.append(Task(stage % workers, False, (back if backward else 1.0) / chunks, after))
    return simulate(tasks).total


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("workers", "microbatches"), [(2, 4), (4, 4), (4, 16)])
def test_the_bubble_of_a_pipeline_is_p_minus_one_over_m_plus_p_minus_one(
    schedule: str, workers: int, microbatches: int
) -> None:
    span, busy = pipeline_span(schedule, workers, microbatches), 3.0 * microbatches
    assert 1 - busy / span == pytest.approx((workers - 1) / (microbatches + workers - 1))


@pytest.mark.parametrize(("schedule", "chunks"), [("gpipe", 1), ("1f1b", 1), ("interleaved", 2)])
def test_a_pipeline_by_itself_takes_what_its_tasks_take(schedule: str, chunks: int) -> None:
    stages = Stages(4, 8, schedule, chunks)
    span = pipeline_span(schedule, 4, 8, chunks)
    assert pipeline_seconds(stages, [(1.0, 2.0)] * 4, [0.0] * 4) == pytest.approx(span)
    assert span < pipeline_seconds(stages, [(1.0, 2.0)] * 4, [0.1] * 4) < span + 0.1 * 4 * 8


def test_the_ends_of_a_pipeline_send_one_way_only() -> None:
    assert [messages_sent(Stages(3, 8, "1f1b"), worker) for worker in range(3)] == [8, 16, 8]
    assert messages_sent(Stages(1, 8, "1f1b"), 0) == 0


def test_interleaving_divides_the_bubble_by_the_stages_of_a_worker() -> None:
    plain, interleaved = pipeline_span("1f1b", 4, 8), pipeline_span("interleaved", 4, 8, chunks=2)
    assert plain - 24 == pytest.approx(9)
    assert interleaved - 24 == pytest.approx(4.5, rel=0.35)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved"])
def test_every_schedule_makes_every_pass_once(schedule: str) -> None:
    chunks = 2 if schedule == "interleaved" else 1
    for worker in range(4):
        order = pipeline_order(schedule, worker, 4, 8, chunks)
        assert sorted(order) == [(back, item) for back in (False, True) for item in range(8 * chunks)]


def test_one_forward_one_backward_holds_no_more_passes_than_there_are_workers() -> None:
    held = most = 0
    for backward, _ in pipeline_order("1f1b", 0, 4, 16, 1):
        held += -1 if backward else 1
        most = max(most, held)
    assert most == 4


def test_the_slowest_of_more_ranks_is_slower() -> None:
    late = [largest_of(count, 0.1) for count in (1, 2, 16, 1024)]
    assert late[0] == 0
    assert all(less < more for less, more in pairwise(late))
    assert largest_of(2, 0.1) == pytest.approx(0.1 * 0.5642, rel=0.06)


def test_workers_at_an_idle_server_make_as_many_updates_as_they_can() -> None:
    served = serve([1.0, 1.0], service=0.001)
    assert served.updates_per_second == pytest.approx(2, rel=0.05)
    assert served.staleness == pytest.approx(1, abs=0.2)


def test_a_server_that_is_busy_all_the_time_decides() -> None:
    served = serve([0.1] * 16, service=1.0)
    assert served.updates_per_second == pytest.approx(1, rel=0.1)
    assert served.staleness == pytest.approx(15, rel=0.2)


def test_a_long_line_is_worth_what_its_mean_says() -> None:
    assert serve([1.0] * 1000, service=0.01).updates_per_second == pytest.approx(100)


def test_unlike_workers_do_not_wait_for_each_other_at_a_server() -> None:
    served = serve([1.0, 4.0], service=0.0)
    assert served.updates_per_second == pytest.approx(1.25, rel=0.05)
