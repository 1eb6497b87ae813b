"""What a run with a membership left ─► its record: one stretch of training with everything that went on in it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paceline.contract.context import Process
from paceline.contract.job import Evaluation
from paceline.plan import PlannedRun
from paceline.record import Epoch, MemberChange, Progress, Record, Status
from paceline.runs.outcome import Ending, classify, evaluated, rank_record, startup_of
from paceline.runs.surroundings import Surroundings


@dataclass(frozen=True)
class ElasticEnding:
    """How the members ended, what was changed and what was noted."""

    ending: Ending
    # The processes that were members in the end, in the order of codes and reports.
    members: Sequence[Process]
    changes: Sequence[MemberChange]
    progress: tuple[Progress, ...]
    # Whether members were started by Paceline itself, so that their start is that of the run.
    is_first_life: bool = True
    too_late: bool = False


def elastic_record(run: PlannedRun, study: str, ended: ElasticEnding, surroundings: Surroundings) -> Record:
    """The record; progress and changes are kept whatever way the run ended."""
    status, reason, culprit = classify(ended.ending, ended.members)
    if ended.too_late:
        status, culprit = Status.FAILED, len(ended.members) - 1
        reason = "the run was over before the worker that joined could train; give more steps"
    elif status is Status.OK and run.spec.membership and len(ended.changes) < len(run.spec.membership.changes):
        status, reason = Status.FAILED, "the run was over before all changes of its members were made; give more steps"
    measured = _measured_fields(run, ended, surroundings) if status is Status.OK else {}
    return Record(
        study=study, spec=run.spec, repeat=run.repeat, status=status, reason=reason,
        started_at=surroundings.started_at, wall_seconds=surroundings.wall_seconds,
        findings=tuple(surroundings.findings), environment=surroundings.environment, gpus=surroundings.gpus,
        parameters=surroundings.parameters, changes=tuple(ended.changes), progress=ended.progress,
        log_tail="" if status is Status.OK else ended.ending.log_tails[culprit], **measured,
    )  # fmt: skip


def _measured_fields(run: PlannedRun, ended: ElasticEnding, surroundings: Surroundings) -> dict[str, Any]:
    results = ended.ending.results
    views = [view for result in results for view in result.measured.epochs]
    losses = losses_by_step(ended.progress)
    known = [loss for loss in losses if loss is not None]
    epoch = Epoch(
        number=1, seconds=ended.progress[-1].seconds - ended.progress[0].seconds, steps=len(losses),
        samples=sum(point.samples for point in distinct(ended.progress)[1:]),
        cpu_seconds=sum(view.cpu_seconds for view in views),
        train_loss=sum(known) / len(known) if known else None,
        **evaluated([view.evaluation for view in views if isinstance(view.evaluation, Evaluation)]),
    )  # fmt: skip
    ranks = [rank_record(process, result) for process, result in zip(ended.members, results, strict=True)]
    return {
        "epochs": (epoch,),
        "ranks": tuple(ranks),
        "losses": tuple(losses),
        "startup": startup_of(results, surroundings.launched) if ended.is_first_life else None,
    }


def distinct(progress: Sequence[Progress]) -> list[Progress]:
    """Progress without what was trained on before: each part of each step once, when it was first made."""
    parts: dict[tuple[int, int], Progress] = {}
    for point in progress:
        parts.setdefault((point.step, point.part), point)
    return list(parts.values())


def losses_by_step(progress: Sequence[Progress]) -> list[float | None]:
    """The mean over the parts of each step, as they were trained on last."""
    latest: dict[int, dict[int, float]] = {}
    for point in progress:
        if point.loss is not None:
            latest.setdefault(point.step, {})[point.part] = point.loss
    last = max((point.step for point in progress), default=0)
    return [sum(latest[step].values()) / len(latest[step]) if step in latest else None for step in range(1, last + 1)]
