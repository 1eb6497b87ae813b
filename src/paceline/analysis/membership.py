"""What departures and arrivals cost: seconds in which nothing new was trained on, samples made again or left out."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from paceline.record import MemberChange, Progress, Record
from paceline.runs.elastic.outcome import distinct

# A picture shows the rate over stretches of this many seconds, or longer ones where a run is long.
STRETCH_SECONDS = 0.5
MOST_STRETCHES = 120
# What a strategy says of samples that were trained on twice without being noted twice.
SAMPLES_AGAIN = "samples_again"


@dataclass(frozen=True)
class ChangeCost:
    """One departure or arrival. Samples per second are those while training went on."""

    kind: str
    step: int
    # From the first step of the run.
    at_seconds: float
    # The longest stretch after it without new samples, less what passes between two steps usually.
    standstill_seconds: float
    # Of an arrival: from its start until the newcomer trained for the first time; None where it never did.
    until_training_seconds: float | None
    # Trained on again, because what they had led to was lost; and never trained on, because nobody took them over.
    samples_again: int
    samples_left_out: int
    samples_per_second_before: float | None
    samples_per_second_after: float | None
    went_on: bool


@dataclass(frozen=True)
class MembershipSummary:
    """A run whose members changed: its changes, and what it did over time."""

    changes: tuple[ChangeCost, ...]
    # Seconds from the first step and samples per second, over equal stretches.
    rates: tuple[tuple[float, float], ...]
    # Seconds from the first step and loss.
    losses: tuple[tuple[float, float], ...]


def summarise_membership(records: Sequence[Record]) -> MembershipSummary | None:
    """The newest run with changes, a good one if there is any; None where there is none."""
    changed = [record for record in records if record.changes and record.progress]
    if not changed:
        return None
    record = next((record for record in reversed(changed) if record.ok), changed[-1])
    start, new = record.progress[0].seconds, distinct(record.progress)
    return MembershipSummary(
        changes=tuple(_cost(record, place, new) for place in range(len(record.changes))),
        rates=tuple(_rates(new, start)),
        losses=tuple((point.seconds - start, point.loss) for point in new if point.loss is not None),
    )


def _cost(record: Record, place: int, new: Sequence[Progress]) -> ChangeCost:
    changes = record.changes
    change, before = changes[place], changes[place - 1].seconds if place else 0.0
    until = changes[place + 1].seconds if place + 1 < len(changes) else float("inf")
    newcomer = record.spec.workers - 1
    trained = [point.seconds for point in new if point.seconds > change.seconds and newcomer in point.trained_by]
    arrived = trained[0] if change.kind == "join" and trained and trained[0] < until else None
    return ChangeCost(
        kind=change.kind,
        step=change.step,
        at_seconds=change.seconds - new[0].seconds,
        standstill_seconds=_standstill(new, change.seconds, until),
        until_training_seconds=None if arrived is None else arrived - change.seconds,
        samples_again=_again(record, place),
        samples_left_out=_left_out(record, place) if record.ok else 0,
        samples_per_second_before=_rate(new, before, change.seconds),
        samples_per_second_after=_rate(new, arrived or change.seconds, until),
        went_on=any(change.seconds < point.seconds < until for point in new),
    )


def _gaps(new: Sequence[Progress]) -> list[tuple[float, float]]:
    return list(pairwise(point.seconds for point in new))


def _standstill(new: Sequence[Progress], since: float, until: float) -> float:
    """The longest gap between new samples that ends after the change and begins before the next one."""
    usual = median(end - start for start, end in _gaps(new)) if len(new) > 1 else 0.0
    longest = max((end - start for start, end in _gaps(new) if end > since and start < until), default=0.0)
    return max(0.0, longest - usual)


def _rate(new: Sequence[Progress], since: float, until: float) -> float | None:
    """Samples per second between two moments, without the longest standstill."""
    inside = [point for point in new if since <= point.seconds < until]
    if len(inside) < 2:
        return None
    seconds = inside[-1].seconds - inside[0].seconds - _standstill(inside, since, until)
    return sum(point.samples for point in inside[1:]) / seconds if seconds > 0 else None


def _again(record: Record, place: int) -> int:
    """Samples that were noted a second time after this change and before the next."""
    first_time = {id(point) for point in distinct(record.progress)}
    again = sum(
        point.samples
        for point in record.progress
        if id(point) not in first_time and _change_of(record.changes, point.seconds) == place
    )
    unnoted = sum(int(rank.details.get(SAMPLES_AGAIN, 0)) for rank in record.ranks) if place == 0 else 0
    return again + unnoted


def _change_of(changes: Sequence[MemberChange], seconds: float) -> int | None:
    """The change that a moment comes after."""
    return max((place for place, change in enumerate(changes) if change.seconds <= seconds), default=None)


def _left_out(record: Record, place: int) -> int:
    """Samples of steps from this departure on, up to the next one, that no worker ever trained on."""
    changes, steps = record.changes, record.spec.steps or 0
    if changes[place].kind != "leave":
        return 0
    later = [change.step for change in changes[place + 1 :] if change.kind == "leave"]
    first = 1 if place == 0 else changes[place].step
    until = later[0] if later else steps + 1
    trained = {(point.step, point.part) for point in record.progress}
    sizes = {point.part: point.samples for point in record.progress}
    return sum(size for part, size in sizes.items() for step in range(first, until) if (step, part) not in trained)


def _rates(new: Sequence[Progress], start: float) -> list[tuple[float, float]]:
    """Samples per second over equal stretches; the middle of each and its rate."""
    length = new[-1].seconds - start
    stretch = max(STRETCH_SECONDS, length / MOST_STRETCHES)
    samples = [0] * (int(length / stretch) + 1)
    for point in new[1:]:
        samples[int((point.seconds - start) / stretch)] += point.samples
    # The last stretch is cut short.
    return [((place + 0.5) * stretch, count / stretch) for place, count in enumerate(samples[:-1])]
