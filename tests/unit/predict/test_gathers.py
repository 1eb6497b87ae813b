"""Layers that are gathered one ahead: the ends that the event simulator gives, also where like layers are skipped."""

import random

import pytest

from paceline.predict.simulate import LayerTurn, gathered_step
from unit.predict.event_simulator import Task, simulate


def simulated(turns: list[LayerTurn], before: float, interference: float) -> float:
    tasks: list[Task] = []

    def add(transfers: bool, seconds: float, *after: int) -> int:
        tasks.append(Task(0, transfers, seconds, tuple(number for number in after if number >= 0)))
        return len(tasks) - 1

    first = [add(True, before)] if before else []
    done, earlier, scatter = -1, -1, 0.0
    for turn in [like for like in turns for _ in range(like.layers)]:
        gathered = [add(True, turn.gather, earlier)] if turn.gather else []
        if scatter:
            add(True, scatter, done)
        done, earlier = add(False, turn.compute, *gathered, *first, done), done
        scatter = turn.scatter
    if scatter:
        add(True, scatter, done)
    return simulate(tasks, interference).total


@pytest.mark.parametrize("seed", range(40))
def test_a_step_ends_when_the_simulator_says(seed: int) -> None:
    chance = random.Random(seed)

    def some() -> float:
        return chance.choice((0.0, chance.uniform(0, 2)))

    forward = [LayerTurn(some(), chance.uniform(0.1, 2), 0.0, chance.randint(1, 12)) for _ in range(3)]
    backward = [LayerTurn(some(), chance.uniform(0.1, 4), some(), turn.layers) for turn in reversed(forward)]
    interference, before = chance.choice((0.0, 0.1, 1.0)), some()
    ends = gathered_step([*forward, *backward], before, interference)
    assert max(ends) == pytest.approx(simulated([*forward, *backward], before, interference))
