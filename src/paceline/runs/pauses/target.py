"""Evaluations in the middle of training, until a target is reached: when one is due, and what came of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from paceline.contract.job import Evaluation, Job
from paceline.record import Finding, Look
from paceline.runs.pauses.standing_still import between_steps
from paceline.runs.wire import LookResult
from paceline.spec import RunSpec

# Steps from one evaluation to the next, as a share of those made: the steps to the target are off by at most as much.
SHARE_BETWEEN_EVALUATIONS = 1 / 20


def is_due(steps: int, last: int) -> bool:
    """Whether to evaluate after so many steps, having done so last after `last`."""
    return steps - last >= max(1, int(steps * SHARE_BETWEEN_EVALUATIONS))


def evaluations_in(steps: int) -> int:
    """How often a run of so many steps is evaluated that never comes to its target."""
    count = last = 0
    for step in range(1, steps + 1):
        if is_due(step, last):
            count, last = count + 1, step
    return count


def target_findings(spec: RunSpec, looks: Sequence[Look]) -> list[Finding]:
    """Where a run could not come to its target, or where that could be looked for too rarely."""
    if spec.target_accuracy is not None and looks and all(look.test_accuracy is None for look in looks):
        text = f"accuracy {spec.target_accuracy:g} is looked for, and the model's own loss tells of no accuracy"
        return [Finding(code="no_accuracy", text=text, hint="give a loss to look for: --target-loss, or target_loss")]
    return _coarse_looks([look.step for look in looks])


def _coarse_looks(steps: Sequence[int]) -> list[Finding]:
    """A job that makes many steps at once can be looked at between them only."""
    gaps = [(step - before, step) for before, step in pairwise([0, *steps])]
    gap, step = max(gaps, key=lambda each: each[0] / each[1], default=(0, 1))
    if gap <= max(1, step * SHARE_BETWEEN_EVALUATIONS):
        return []
    text = f"{gap} steps are made at once, and its target is looked for only between them"
    hint = f"the steps to the target are known to {gap} only; set fewer steps per execution, or another loop"
    return [Finding(code="coarse_looks", text=text, hint=hint)]


@dataclass
class TargetEvaluator:
    """Evaluates a job after steps that are ever further apart; the time that this takes is in no epoch.

    A process that trains alone ends the run at the target. Several processes make all steps of the run, as each has
    evaluated a part of the test set only.
    """

    job: Job
    spec: RunSpec
    alone: bool
    looks: list[LookResult] = field(default_factory=list)
    steps: int = 0
    cpu_seconds: float = 0.0
    is_done: bool = False

    def after_steps(self, count: int) -> int:
        """Counts steps and evaluates where that was due; gives the nanoseconds that it took."""
        self.steps += count
        last = self.looks[-1].step if self.looks else 0
        if not is_due(self.steps, last):
            return 0
        nanoseconds, cpu_seconds = between_steps(self.job, self._evaluate)
        self.cpu_seconds += cpu_seconds
        return nanoseconds

    def _evaluate(self) -> None:
        self.job.align()
        evaluation = self.job.evaluate()
        self.job.wait()
        self.job.align()
        self.looks.append(LookResult(step=self.steps, evaluation=evaluation))
        self.is_done = self.alone and evaluation is not None and self._reached(evaluation)

    def _reached(self, evaluation: Evaluation) -> bool:
        if self.spec.target_accuracy is not None:
            return (
                bool(evaluation.predictions)
                and (evaluation.correct or 0) / (evaluation.predictions or 1) >= self.spec.target_accuracy
            )
        assert self.spec.target_loss is not None
        return evaluation.loss_sum / evaluation.samples <= self.spec.target_loss
