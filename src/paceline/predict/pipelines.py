"""The workers of a pipeline in one step: how long they take for the passes of their schedule."""

from collections.abc import Sequence

from paceline.costs.footprint import Stages
from paceline.predict.schedules import Kind, holder, orders

# Of a backward pass: gradients of inputs take as many operations as gradients of weights.
HALF = 1 / 2
# When something arrived, by stage and micro-batch; None where that is not known yet.
Arrivals = list[list[float | None]]


def pipeline_seconds(stages: Stages, passes: Sequence[tuple[float, float]], sends: Sequence[float]) -> float:
    """Until every worker has made its passes in the order of the schedule, each followed by sending what it made.

    `passes` are the seconds of each worker's forward and backward pass through all of its stages, `sends` those of one
    of its messages, which leave one after another.
    """
    workers, chunks, count = stages.workers, stages.stages_per_worker, stages.microbatches
    schedule, last = orders(stages.schedule, workers, count, chunks), workers * chunks - 1
    holders = [holder(stages.schedule, workers, stage) for stage in range(last + 1)]
    # When what a pass made is there for the stage before or after, by stage and micro-batch.
    ahead: Arrivals = [[None] * count for _ in holders]
    back: Arrivals = [[None] * count for _ in holders]
    places, free, link = [0] * workers, [0.0] * workers, [0.0] * workers
    left = sum(map(len, schedule))
    while left:
        before = left
        for worker, order in enumerate(schedule):
            place, now, sent = places[worker], free[worker], link[worker]
            seconds = _seconds_of(passes[worker], chunks)
            while place < len(order):
                kind, stage, microbatch = order[place]
                takes = seconds[stage > 0][kind]
                place += 1
                if kind == "weights":
                    now += takes
                    continue
                forward = kind == "forward"
                arriving = _arriving(ahead, back, forward, stage, last)
                needed = 0.0 if arriving is None else arriving[microbatch]
                if needed is None:
                    place -= 1
                    break
                now = max(now, needed) + takes
                following = stage + 1 if forward else stage - 1
                # The last stage turns round, and stages that meet on a worker send nothing to each other.
                sends_on = 0 <= following <= last and holders[following] != worker
                sent = max(sent, now) + sends[worker] if sends_on else sent
                (ahead if forward else back)[stage][microbatch] = sent if sends_on else now
            left -= place - places[worker]
            places[worker], free[worker], link[worker] = place, now, sent
        if left == before:
            raise ValueError("passes wait for each other")
    return max(*free, *link)


def _arriving(ahead: Arrivals, back: Arrivals, forward: bool, stage: int, last: int) -> list[float | None] | None:
    """What a pass waits for, by micro-batch: the stage before it, the one behind it, or at the end its forward pass."""
    if forward:
        return ahead[stage - 1] if stage else None
    return back[stage + 1] if stage < last else ahead[last]


def _seconds_of(passes: tuple[float, float], chunks: int) -> tuple[dict[Kind, float], dict[Kind, float]]:
    """Seconds of each kind of pass through one stage: the first, and any other."""
    forward, backward = (seconds / chunks for seconds in passes)
    whole: dict[Kind, float] = {"forward": forward, "backward": backward}
    # Nothing is before the first stage: PyTorch makes its whole backward pass where the weights' turn is.
    first: dict[Kind, float] = {**whole, "inputs": 0.0, "weights": backward}
    return first, {**whole, "inputs": HALF * backward, "weights": HALF * backward}


def messages_sent(stages: Stages, worker: int) -> int:
    """Messages of one worker: what its passes make for stages of others."""
    count = stages.workers * stages.stages_per_worker
    holders = [holder(stages.schedule, stages.workers, stage) for stage in range(count)]
    neighbours = [
        other
        for stage in range(count)
        if holders[stage] == worker
        for other in (stage - 1, stage + 1)
        if 0 <= other < count and holders[other] != worker
    ]
    return len(neighbours) * stages.microbatches
