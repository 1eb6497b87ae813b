"""Steps as tasks on streams, in cases that can be worked out on paper."""

import pytest

from paceline.costs.footprint import Stages
from paceline.predict.pipelines import messages_sent, pipeline_seconds
from paceline.predict.schedules import holder, orders
from paceline.predict.simulate import overlap
from unit.predict.event_simulator import Task, simulate


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


def pipeline_span(schedule: str, workers: int, microbatches: int, chunks: int = 1) -> float:
    """The span of equal stages: forward through all of a worker's stages takes one second, and back two."""
    order = [made for passes in orders(schedule, workers, microbatches, chunks) for made in passes]
    numbers = {made: number for number, made in enumerate(order)}
    last, tasks = workers * chunks - 1, []

    def first_known(stage: int, microbatch: int, *kinds: str) -> int:
        return next(numbers[kind, stage, microbatch] for kind in kinds if (kind, stage, microbatch) in numbers)

    for kind, stage, microbatch in order:
        after: tuple[int, ...] = ()
        if kind == "forward":
            after = (numbers["forward", stage - 1, microbatch],) if stage else ()
        elif kind != "weights":
            after = (first_known(stage + 1, microbatch, "inputs", "backward") if stage < last
                     else numbers["forward", last, microbatch],)  # fmt: skip
        seconds = {"forward": 1.0, "backward": 2.0, "inputs": 1.0 if stage else 0.0, "weights": 1.0 if stage else 2.0}
        tasks.append(Task(holder(schedule, workers, stage), False, seconds[kind] / chunks, after))
    return simulate(tasks).total


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("workers", "microbatches"), [(2, 4), (4, 4), (4, 16)])
def test_the_bubble_of_a_pipeline_is_p_minus_one_over_m_plus_p_minus_one(
    schedule: str, workers: int, microbatches: int
) -> None:
    span, busy = pipeline_span(schedule, workers, microbatches), 3.0 * microbatches
    assert 1 - busy / span == pytest.approx((workers - 1) / (microbatches + workers - 1))


CHUNKS = {"gpipe": 1, "1f1b": 1, "interleaved": 2, "interleaved-zero-bubble": 2, "zbv": 2, "dualpipev": 2}


@pytest.mark.parametrize(("schedule", "chunks"), CHUNKS.items())
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


@pytest.mark.parametrize("schedule", ["interleaved-zero-bubble", "zbv", "dualpipev"])
@pytest.mark.parametrize(("workers", "microbatches"), [(2, 4), (4, 8), (8, 32)])
def test_backward_passes_in_halves_idle_for_less_than_whole_ones(
    schedule: str, workers: int, microbatches: int
) -> None:
    busy = 3.0 * microbatches
    halves, interleaved, plain = (
        pipeline_span(name, workers, microbatches, CHUNKS[name]) - busy for name in (schedule, "interleaved", "1f1b")
    )
    assert halves < plain / 2
    assert halves <= interleaved


@pytest.mark.parametrize("schedule", ["interleaved-zero-bubble", "zbv", "dualpipev"])
@pytest.mark.parametrize(("workers", "microbatches"), [(2, 4), (4, 8), (8, 32)])
def test_the_bubble_of_halves_is_that_of_one_forward_pass_per_worker(
    schedule: str, workers: int, microbatches: int
) -> None:
    # Qi et al., 2024, table 1: (p - 1)(F + I - W), here with F = I = W and two stages to a worker.
    stages = Stages(workers, microbatches, schedule, 2)
    span = pipeline_seconds(stages, [(1.0, 2.0)] * workers, [0.0] * workers)
    assert span - 3 * microbatches == pytest.approx((workers - 1) / 2)


@pytest.mark.parametrize("schedule", CHUNKS)
@pytest.mark.parametrize(("workers", "microbatches"), [(2, 4), (4, 8), (4, 9)])
def test_every_schedule_makes_every_pass_once(schedule: str, workers: int, microbatches: int) -> None:
    if "interleaved" in schedule and microbatches % max(1, microbatches // workers):
        pytest.skip("micro-batches are not dealt evenly")
    for worker, order in enumerate(orders(schedule, workers, microbatches, CHUNKS[schedule])):
        held = {stage for _, stage, _ in order}
        assert {holder(schedule, workers, stage) for stage in held} == {worker}
        each = [(stage, microbatch) for stage in sorted(held) for microbatch in range(microbatches)]
        for kinds in (("forward",), ("backward", "inputs"), ("backward", "weights")):
            assert sorted((stage, number) for kind, stage, number in order if kind in kinds) == each
        assert len(set(order)) == len(order)


def test_one_forward_one_backward_holds_no_more_passes_than_there_are_workers() -> None:
    held = most = 0
    for kind, _, _ in orders("1f1b", 4, 16, 1)[0]:
        held += 1 if kind == "forward" else -1
        most = max(most, held)
    assert most == 4


def test_stages_of_a_v_that_meet_on_a_worker_send_nothing_to_each_other() -> None:
    assert [messages_sent(Stages(3, 6, "zbv", 2), worker) for worker in range(3)] == [12, 24, 12]
    assert [messages_sent(Stages(3, 6, "interleaved", 2), worker) for worker in range(3)] == [18, 24, 18]
