"""The workers of a pipeline in one step: in which order each makes its passes, and how long all of them take."""

from collections.abc import Sequence
from functools import lru_cache

from paceline.costs.footprint import Stages

# A pass: whether it is a backward one, its stage and its micro-batch.
Pass = tuple[bool, int, int]


def pipeline_order(schedule: str, worker: int, workers: int, microbatches: int, chunks: int) -> list[tuple[bool, int]]:
    """Passes of one worker in order: (backward or not, number of the micro-batch's pass through one of its stages).

    A pass is `microbatch * chunks + chunk`. GPipe does all forward passes first; 1F1B turns to a backward pass as soon
    as it can; interleaved does the same with several stages per worker (Narayanan et al., 2021).
    """
    forward = _forward_passes(workers, microbatches, chunks)
    backward = [number - number % chunks + (chunks - 1 - number % chunks) for number in forward]
    total = microbatches * chunks
    if schedule == "gpipe":
        return [(False, number) for number in forward] + [(True, number) for number in backward]
    ahead = (workers - worker - 1) * (1 if chunks == 1 else 2) + (chunks - 1) * min(workers, microbatches)
    ahead = min(total, ahead)
    order = [(False, number) for number in forward[:ahead]]
    for step in range(total):
        if ahead + step < total:
            order.append((False, forward[ahead + step]))
        order.append((True, backward[step]))
    return order


def _forward_passes(workers: int, microbatches: int, chunks: int) -> list[int]:
    """Groups of as many micro-batches as there are workers go through the first stage of each, then the second."""
    passes: list[int] = []
    for start in range(0, microbatches, workers):
        group = range(start, min(start + workers, microbatches))
        passes += [microbatch * chunks + chunk for chunk in range(chunks) for microbatch in group]
    return passes


@lru_cache(maxsize=64)
def _orders(schedule: str, workers: int, microbatches: int, chunks: int) -> tuple[tuple[Pass, ...], ...]:
    """The passes of every worker, by stage and micro-batch."""
    return tuple(
        tuple(
            (backward, item % chunks * workers + worker, item // chunks)
            for backward, item in pipeline_order(schedule, worker, workers, microbatches, chunks)
        )
        for worker in range(workers)
    )


def pipeline_seconds(stages: Stages, passes: Sequence[tuple[float, float]], sends: Sequence[float]) -> float:
    """Until every worker has made its passes in the order of the schedule, each followed by sending what it made.

    `passes` are the seconds of each worker's forward and backward pass through all of its stages, `sends` those of one
    of its messages, which leave one after another. Zero-bubble schedules are taken for interleaved ones, which take no
    less.
    """
    workers, chunks, count = stages.workers, stages.stages_per_worker, stages.microbatches
    orders, last = _orders(stages.schedule, workers, count, chunks), workers * chunks - 1
    # When what a pass made has arrived, by direction, stage and micro-batch; and the end of the last stage's passes.
    arrived: list[list[list[float | None]]] = [[[None] * count for _ in range(last + 1)] for _ in range(2)]
    turned: list[float | None] = [None] * count
    places, free, link = [0] * workers, [0.0] * workers, [0.0] * workers
    left = sum(map(len, orders))
    while left:
        before = left
        for worker, order in enumerate(orders):
            place, now, sent = places[worker], free[worker], link[worker]
            seconds, send = passes[worker], sends[worker]
            while place < len(order):
                backward, stage, microbatch = order[place]
                needed: float | None
                if backward:
                    needed = turned[microbatch] if stage == last else arrived[True][stage + 1][microbatch]
                else:
                    needed = arrived[False][stage - 1][microbatch] if stage else 0.0
                if needed is None:
                    break
                now = max(now, needed) + seconds[backward] / chunks
                if not backward and stage == last:
                    turned[microbatch] = now
                ends = stage == (0 if backward else last)
                sent = max(sent, now) + (0.0 if ends else send)
                arrived[backward][stage][microbatch] = sent
                place += 1
            left -= place - places[worker]
            places[worker], free[worker], link[worker] = place, now, sent
        if left == before:
            raise ValueError("passes wait for each other")
    return max(*free, *link)


def messages_sent(stages: Stages, worker: int) -> int:
    """Messages of one worker: what its passes make, but for the first stage's gradients and the last one's outputs."""
    kept = (worker == 0) + (worker == stages.workers - 1)
    return (2 * stages.stages_per_worker - kept) * stages.microbatches
