"""Timing a job through the protocol alone."""

import itertools
import math

import pytest

from paceline.contract.context import Context, Process, Rendezvous
from paceline.contract.job import Evaluation
from paceline.runs import measure
from paceline.runs.measure import REPORT_NANOSECONDS, TOLD_LOSSES, serve, train
from paceline.runs.wire import EpochEvent, Measurements, StepEvent
from paceline.strategies.fake import FakeJob

MILLISECOND = 1_000_000


class ScriptedJob:
    """Writes down what is asked of it; its clock moves 1 ms in a step, 5 in a wait and 1000 in an evaluation."""

    def __init__(self, stride=1, step_ms=1):
        self.stride, self.calls, self._now, self._step = stride, [], 7, step_ms * MILLISECOND

    def clock(self):
        return self._now

    def align(self):
        self.calls.append("align")
        self._now += 100 * MILLISECOND

    def start_epoch(self, epoch):
        self.calls.append(f"epoch {epoch}")

    def step(self, first, count):
        self.calls.append((first, count))
        self._now += count * self._step

    def wait(self):
        self.calls.append("wait")
        self._now += 5 * MILLISECOND

    def losses(self):
        self.calls.append("losses")
        return [0.5]

    def evaluate(self):
        self.calls.append("evaluate")
        self._now += 1000 * MILLISECOND
        return Evaluation(10, 5.0, 10, 9)

    def details(self):
        return {"threads": 1}


@pytest.fixture
def events():
    return []


@pytest.fixture
def report(events):
    return events.append


@pytest.fixture
def fake_job(make_spec):
    """The fake strategy's job with these knobs."""

    def make(workers=1, **knobs):
        spec = make_spec(workers=workers, knobs=knobs)
        return FakeJob(Context(spec, Process(0, workers, "worker", 0, (0,)), Rendezvous("127.0.0.1", 0)))

    return make


def test_the_job_is_asked_in_order_and_evaluated_after_the_device_is_done(report):
    job = ScriptedJob()
    train(job, [(0, 2), (1, 1)], 32, report)
    assert job.calls == [
        *("align", "epoch 0", (0, 1), (1, 1), "wait", "losses", "evaluate"),
        *("align", "epoch 1", (0, 1), "wait", "losses", "evaluate"),
    ]


def test_an_epoch_has_a_stamp_before_and_one_after_each_step(report):
    (part,) = train(ScriptedJob(), [(0, 3)], 32, report).epochs
    assert [stamp - part.stamps[0] for stamp in part.stamps] == [0, MILLISECOND, 2 * MILLISECOND, 3 * MILLISECOND]


def test_the_timed_region_ends_when_the_device_is_done_and_leaves_evaluation_and_alignment_out(report):
    first, second = train(ScriptedJob(), [(0, 3), (1, 3)], 32, report).epochs
    assert first.ended - first.stamps[0] == second.ended - second.stamps[0] == 8 * MILLISECOND
    assert second.stamps[0] - first.ended == 1100 * MILLISECOND


def test_a_job_may_make_several_steps_in_one_call_and_the_last_call_has_the_rest(report):
    job = ScriptedJob(stride=4)
    (part,) = train(job, [(0, 10)], 32, report).epochs
    assert [call for call in job.calls if isinstance(call, tuple)] == [(0, 4), (4, 4), (8, 2)]
    assert len(part.stamps) == 4


def test_what_the_process_hands_back_survives_the_way_as_json(report):
    measured = train(ScriptedJob(), [(0, 1)], 32, report)
    assert Measurements.model_validate_json(measured.model_dump_json()) == measured
    assert measured.details == {"threads": 1}
    assert measured.epochs[0].evaluation == Evaluation(samples=10, loss_sum=5.0, predictions=10, correct=9)
    assert measured.epochs[0].losses == [0.5]
    assert measured.peak_memory_bytes > 1 << 20
    assert measured.cpu_seconds > 0
    assert measured.serving_cpu_seconds is None


def test_memory_is_looked_at_when_the_steps_are_done_and_again_in_the_end(report):
    measured = train(ScriptedJob(), [(0, 1), (1, 1)], 32, report)
    first = measured.epochs[0].resident
    assert first.peak_bytes >= first.current_bytes > 1 << 20
    assert measured.resident.current_bytes > 1 << 20


def test_the_energy_of_a_process_that_serves_is_known_by_its_cpu_seconds_while_serving():
    class Busy:
        def serve(self):
            sum(range(2_000_000))

        def details(self):
            return {}

    measured = serve(Busy())
    assert 0 < measured.serving_cpu_seconds < measured.cpu_seconds


def test_a_process_that_serves_others_hands_back_no_epochs_but_its_details_and_use():
    class Server:
        served = 0

        def serve(self):
            self.served += 1

        def details(self):
            return {"served": self.served}

    measured = serve(Server())
    assert (measured.epochs, measured.details) == ([], {"served": 1})
    assert measured.peak_memory_bytes > 1 << 20


def test_the_first_step_of_the_run_is_reported_whatever_it_took(report, events):
    train(ScriptedJob(), [(0, 2), (1, 2)], 32, report)
    assert [event for event in events if event.kind == "step"] == [
        StepEvent(epoch=0, step=1, steps=2, samples_per_second=32_000.0)
    ]


@pytest.mark.parametrize(("cpu_seconds", "told"), [(0.06, [1, 5, 9, 13, 17]), (0.001, [1, 18])])
def test_steps_are_reported_every_fifth_of_a_second_where_the_process_computes_and_else_every_second(
    report, events, monkeypatch, cpu_seconds, told
):
    readings = itertools.count(0, cpu_seconds)
    monkeypatch.setattr(measure, "process_time", lambda: next(readings))
    train(ScriptedJob(step_ms=60), [(0, 20)], 32, report)
    steps = [event.step for event in events if event.kind == "step"]
    assert steps == told
    assert 4 * 60 * MILLISECOND > REPORT_NANOSECONDS


def test_every_epoch_is_reported_with_its_rate(report, events):
    train(ScriptedJob(), [(0, 3), (1, 3)], 32, report)
    assert [event for event in events if event.kind == "epoch"] == [
        EpochEvent(epoch=epoch, steps=3, samples_per_second=3 * 32 / 0.008) for epoch in (0, 1)
    ]


def test_the_losses_of_every_epoch_are_told_some_of_many_and_the_last_among_them(fake_job, report, events):
    measured = train(fake_job(), [(0, 130), (1, 2)], 256, report)
    first, second = (event for event in events if event.kind == "losses")
    losses = measured.epochs[0].losses
    assert (first.epoch, first.steps, len(first.losses), first.losses[-1]) == (0, 130, TOLD_LOSSES, losses[-1])
    assert set(first.losses) < set(losses) and first.losses[:2] == (losses[1], losses[4])
    assert second.losses == tuple(measured.epochs[1].losses)


def test_a_loss_is_told_on_the_way_where_reading_it_waits_for_nothing(fake_job, report, events):
    train(fake_job(), [(0, 2)], 256, report)
    job = ScriptedJob()
    assert not hasattr(job, "latest_loss")
    train(job, [(0, 2)], 256, report)
    assert [event.loss for event in events if event.kind == "step"] == [pytest.approx(2.243, abs=1e-3), None]


def test_the_fake_strategy_takes_exactly_the_time_it_is_told(fake_job, report):
    first, second = train(fake_job(step_ms=10.0, first_epoch_ms=100.0), [(0, 4), (1, 4)], 256, report).epochs
    assert first.ended - first.stamps[0] == 140 * MILLISECOND
    assert second.ended - second.stamps[0] == 40 * MILLISECOND


def test_more_workers_of_the_fake_strategy_share_the_batch_and_pay_for_sending(fake_job, report):
    (part,) = train(fake_job(workers=4, step_ms=10.0, send_ms=2.0), [(0, 2)], 256, report).epochs
    assert part.ended - part.stamps[0] == 2 * 4_500_000


def test_an_error_in_a_step_is_passed_on(fake_job, report):
    with pytest.raises(RuntimeError, match="told to fail"):
        train(fake_job(fault="fail"), [(0, 4)], 256, report)


def test_a_loss_that_is_not_a_number_takes_the_place_of_one(fake_job, report):
    (part,) = train(fake_job(fault="nan"), [(0, 4)], 256, report).epochs
    assert [math.isnan(loss) for loss in part.losses] == [False, True, False, False]


def test_steps_that_take_no_time_at_all_are_no_error(fake_job, report):
    train(fake_job(step_ms=0.0), [(0, 2)], 256, report)
