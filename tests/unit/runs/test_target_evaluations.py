"""Looks at the test set on the way: how often, what they cost, and when they end a run."""

import itertools

from paceline.contract.context import Context, Process, Rendezvous
from paceline.record import Look
from paceline.runs.measure import train
from paceline.runs.pauses.target import TargetEvaluator, target_findings
from paceline.strategies.fake import FakeJob

STEPS = 600


def trained(make_spec, alone=True, **target):
    spec = make_spec(steps=STEPS, epochs=None, **target)
    job = FakeJob(Context(spec, Process(0, 1, "worker", 0, (0,)), Rendezvous("127.0.0.1", 0)))
    evaluator = TargetEvaluator(job, spec, alone)
    return train(job, [(0, STEPS)], spec.samples_per_step, lambda _event: None, evaluator=evaluator)


def test_looks_are_never_further_apart_than_a_twentieth_of_the_steps_made(make_spec):
    looks = trained(make_spec, target_accuracy=1.0).looks
    for before, after in itertools.pairwise(looks):
        assert after.step - before.step <= max(1, after.step / 20)
    assert looks[0].step == 1
    assert looks[-1].step > STEPS * 0.95


def test_one_process_stops_at_the_target_and_a_look_tells_it(make_spec):
    measured = trained(make_spec, target_accuracy=0.9)
    *before, last = measured.looks
    assert last.evaluation.correct / last.evaluation.predictions >= 0.9
    assert all(look.evaluation.correct / look.evaluation.predictions < 0.9 for look in before)
    assert len(measured.epochs[0].stamps) - 1 == last.step < STEPS


def test_a_target_may_be_a_loss(make_spec):
    *before, last = trained(make_spec, target_loss=0.5).looks
    assert last.evaluation.loss_sum / last.evaluation.samples <= 0.5
    assert before[-1].evaluation.loss_sum / before[-1].evaluation.samples > 0.5


def test_one_of_several_processes_makes_all_steps(make_spec):
    measured = trained(make_spec, alone=False, target_accuracy=0.9)
    assert len(measured.epochs[0].stamps) - 1 == STEPS


def test_without_a_target_nobody_looks(make_spec):
    spec = make_spec(steps=5, epochs=None)
    job = FakeJob(Context(spec, Process(0, 1, "worker", 0, (0,)), Rendezvous("127.0.0.1", 0)))
    assert train(job, [(0, 5)], 1, lambda _event: None).looks == []


def test_what_cannot_come_to_its_target_or_is_looked_at_too_rarely_is_a_finding(make_spec):
    def findings(steps, accuracy, **target):
        looks = [Look(step=step, test_loss=1.0, test_accuracy=accuracy) for step in steps]
        return target_findings(make_spec(steps=STEPS, epochs=None, **target), looks)

    usual = [look.step for look in trained(make_spec, target_accuracy=1.0).looks]
    assert findings(usual, 0.5, target_accuracy=0.9) == findings([], None, target_accuracy=0.9) == []
    (coarse,) = findings([78, 156, 234], 0.5, target_accuracy=0.9)
    assert coarse.code == "coarse_looks" and "78 steps are made at once" in coarse.text
    (unknown,) = findings(usual, None, target_accuracy=0.9)
    assert unknown.code == "no_accuracy" and "--target-loss" in unknown.hint
    assert findings(usual, None, target_loss=0.5) == []
