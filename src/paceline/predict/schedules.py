"""In which order each worker of a pipeline makes its passes, as PyTorch's schedules do.

Huang et al., 2019 (GPipe); Narayanan et al., 2021 (1F1B, interleaved); Qi et al., ICLR 2024 (zero-bubble, ZBV);
DeepSeek-AI, 2024 (DualPipe, here folded into a V).
"""

from collections import Counter, deque
from functools import lru_cache
from typing import Literal, NamedTuple

from paceline.costs.layouts import V_SHAPED

# A forward pass, a whole backward one, or its halves: gradients of inputs, which others wait for, and of weights.
Kind = Literal["forward", "backward", "inputs", "weights"]
_WORDS: dict[str, Kind] = {"F": "forward", "B": "backward", "I": "inputs", "W": "weights"}


class Pass(NamedTuple):
    """One micro-batch through one stage."""

    kind: Kind
    stage: int
    microbatch: int


def holder(schedule: str, workers: int, stage: int) -> int:
    """The worker that holds a stage: stages are dealt in rounds, or in a V (down the workers and up again)."""
    lap, place = divmod(stage, workers)
    return workers - 1 - place if lap % 2 and schedule in V_SHAPED else place


# Each kind of pass by a number; halves of a backward pass through the first stage are of other lengths.
_KIND_NUMBERS: dict[Kind, int] = {"forward": 0, "backward": 1, "inputs": 2, "weights": 3}
_FIRST_STAGE_NUMBERS: dict[Kind, int] = {"forward": 0, "backward": 1, "inputs": 4, "weights": 5}


class Turn(NamedTuple):
    """A pass with what it waits for and what it makes, each by a number; 0 is there from the start."""

    worker: int
    # Forward, backward, its halves for inputs and for weights, and those halves in the first stage.
    kind: int
    needs: int
    makes: int
    # Whether another worker is sent what it made.
    sends_on: bool


@lru_cache(maxsize=128)
def passes_in_turn(schedule: str, workers: int, microbatches: int, chunks: int) -> tuple[Turn, ...]:
    """The passes of all workers, each after those that it waits for: that order is the same whatever they take."""
    order, last = orders(schedule, workers, microbatches, chunks), workers * chunks - 1
    holders = [holder(schedule, workers, stage) for stage in range(last + 1)]
    ready, turns, places = {0}, list[Turn](), [0] * workers
    # What passes for weights make, nobody waits for.
    unused = 2 * workers * chunks * microbatches
    while len(turns) < sum(map(len, order)):
        before = len(turns)
        for worker, passes in enumerate(order):
            for kind, stage, microbatch in passes[places[worker] :]:
                numbers = _KIND_NUMBERS if stage else _FIRST_STAGE_NUMBERS
                if kind == "weights":
                    turns.append(Turn(worker, numbers[kind], 0, unused, False))
                    places[worker] += 1
                    continue
                forward = kind == "forward"
                needs = _needed(forward, stage, microbatch, last, microbatches)
                if needs not in ready:
                    break
                following = stage + 1 if forward else stage - 1
                # The last stage turns round, and stages that meet on a worker send nothing to each other.
                sends_on = 0 <= following <= last and holders[following] != worker
                makes = _number(forward, stage, microbatch, last, microbatches)
                ready.add(makes)
                turns.append(Turn(worker, numbers[kind], needs, makes, sends_on))
                places[worker] += 1
        if len(turns) == before:
            raise ValueError("passes wait for each other")
    return tuple(turns)


def _number(forward: bool, stage: int, microbatch: int, last: int, microbatches: int) -> int:
    """The number of what a pass makes; the last one where nobody waits for it, behind the first stage's way back."""
    if not forward and not stage:
        return 2 * (last + 1) * microbatches
    return 1 + (stage + (0 if forward else last)) * microbatches + microbatch


def _needed(forward: bool, stage: int, microbatch: int, last: int, microbatches: int) -> int:
    """What a pass waits for: the stage before it, the one behind it, or at the end its forward pass."""
    if forward:
        return _number(True, stage - 1, microbatch, last, microbatches) if stage else 0
    if stage == last:
        return _number(True, last, microbatch, last, microbatches)
    return _number(False, stage + 1, microbatch, last, microbatches)


@lru_cache(maxsize=64)
def orders(schedule: str, workers: int, microbatches: int, chunks: int) -> tuple[tuple[Pass, ...], ...]:
    """The passes of every worker, each of which holds `chunks` stages."""
    return tuple(_order(schedule, worker, workers, microbatches, chunks) for worker in range(workers))


def _order(schedule: str, worker: int, workers: int, microbatches: int, chunks: int) -> tuple[Pass, ...]:
    match schedule:
        case "zbv":
            return _zbv(worker, workers, microbatches)
        case "dualpipev":
            return _dualpipev(worker, workers, microbatches)
        case "interleaved-zero-bubble":
            whole = _in_rounds(schedule, worker, workers, microbatches, chunks)
            return _with_weights_apart(whole, behind=worker)
    return _in_rounds(schedule, worker, workers, microbatches, chunks)


def _in_rounds(schedule: str, worker: int, workers: int, microbatches: int, chunks: int) -> tuple[Pass, ...]:
    """Rounds of micro-batches go through the first stage of each worker, then through the second.

    GPipe makes all forward passes first; the others turn to a backward pass as soon as they can.
    """
    size = microbatches if chunks == 1 else microbatches // max(1, microbatches // workers)
    starts = range(0, microbatches, size)
    forward, backward = (
        [
            Pass(kind, chunk * workers + worker, microbatch)
            for start in starts
            for chunk in chunk_order
            for microbatch in range(start, start + size)
        ]
        for kind, chunk_order in (
            (_WORDS["F"], range(chunks)),
            (_WORDS["B"], range(chunks - 1, -1, -1)),
        )
    )
    if schedule == "gpipe":
        return (*forward, *backward)
    # Interleaved, as much again for the way back.
    per_worker = 2 if schedule == "interleaved" else 1
    ahead = min(len(forward), (workers - worker - 1) * per_worker + (chunks - 1) * size)
    order = forward[:ahead]
    for step, back in enumerate(backward):
        order += [*forward[ahead + step : ahead + step + 1], back]
    return tuple(order)


def _with_weights_apart(order: tuple[Pass, ...], behind: int) -> tuple[Pass, ...]:
    """Splits backward passes in two; the weight gradients come so many passes later and fill the end."""
    halves, waiting = list[Pass](), deque[Pass]()
    for scheduled in order:
        if scheduled.kind == "forward":
            halves.append(scheduled)
            continue
        halves.append(scheduled._replace(kind="inputs"))
        waiting.append(scheduled._replace(kind="weights"))
        if len(waiting) > behind:
            halves.append(waiting.popleft())
    return (*halves, *waiting)


class _InTurn:
    """Passes of a worker with two stages of a V, written as words: `F0 I1` is a forward and a half backward pass."""

    def __init__(self, worker: int, workers: int) -> None:
        self._stages = (worker, 2 * workers - 1 - worker)
        self._counts = Counter[tuple[str, int]]()
        self._waiting = deque[Pass]()
        self.order = list[Pass]()

    def count(self, word: str) -> int:
        """How many passes of this kind were made so far."""
        return self._counts[word[0], int(word[1])]

    def repeat(self, times: int, words: str) -> None:
        """Makes the named passes, `times` times; a bare `W` is the oldest pending weight gradient, if any."""
        for word in words.split() * max(0, times):
            if word != "W":
                self._make(word[0], int(word[1]))
            elif self._waiting:
                self.order.append(self._waiting.popleft())

    def _make(self, letter: str, chunk: int) -> None:
        counter = "I" if letter == "B" else letter
        scheduled = Pass(_WORDS[letter], self._stages[chunk], self._counts[counter, chunk])
        self._counts[counter, chunk] += 1
        self.order.append(scheduled)
        if letter == "I":
            self._waiting.append(scheduled._replace(kind="weights"))


def _zbv(worker: int, workers: int, microbatches: int) -> tuple[Pass, ...]:
    """The ZBV order, written for enough micro-batches to fill the V; micro-batches that do not exist are left out."""
    turn, count = _InTurn(worker, workers), max(2 * workers - 1, microbatches)
    turn.repeat(2 * (workers - worker) - 1, "F0")
    turn.repeat(worker, "F1 F0")
    turn.repeat(workers - worker, "F1 I1 W1")
    while turn.count("F1") < count:
        turn.repeat(int(turn.count("F0") < count), "F0")
        turn.repeat(1, "I0 W0 F1 I1 W1")
    turn.repeat(worker, "I0 I1")
    turn.repeat(workers - worker, "I0 W0")
    turn.repeat(worker, "W1")
    turn.repeat(worker, "W0")
    return tuple(scheduled for scheduled in turn.order if scheduled.microbatch < microbatches)


def _dualpipev(worker: int, workers: int, microbatches: int) -> tuple[Pass, ...]:
    turn, after = _InTurn(worker, workers), workers - worker - 1
    turn.repeat(2 * after, "F0")
    turn.repeat(worker + 1, "F0 F1")
    turn.repeat(after, "I1 W F1")
    turn.repeat(microbatches - 2 * workers + worker + 1, "F0 B1 F1 B0")
    turn.repeat(after, "B1 F1 B0")
    # Half of these backward passes are whole, the others leave their weights for the end.
    last = ["1", "0"] * (worker + 1)
    turn.repeat(1, " ".join(f"{'B' if number <= worker else 'I'}{chunk}" for number, chunk in enumerate(last)))
    turn.repeat(after, "W I0")
    turn.repeat(worker + 1, "W")
    return tuple(turn.order)
