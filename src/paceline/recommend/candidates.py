"""What is worth predicting for a question: strategies, worker counts, and settings of strategies that decide much."""

from collections.abc import Iterator, Sequence

from paceline.predict.question import Question
from paceline.recommend.search import LAYOUT
from paceline.spec import Scalar
from paceline.strategies import Strategy, strategy

# Up to so many worker counts are all looked at; of more, powers of two and the ends.
ALL_COUNTS = 16


def worker_counts(workers: Sequence[int]) -> tuple[int, ...]:
    """The worker counts to consider, in order."""
    counts = sorted(set(workers))
    if len(counts) <= ALL_COUNTS:
        return tuple(counts)
    powers = {count for count in counts if count & (count - 1) == 0}
    return tuple(sorted({counts[0], *powers, counts[-1]}))


def pointless_on_one_worker(chosen: Strategy) -> bool:
    """Whether the strategy on one worker only adds overhead to training without a strategy."""
    return chosen.family not in ("single", "data", "fake")


def variants(chosen: Strategy, question: Question, workers: int) -> Iterator[dict[str, Scalar]]:
    """Settings to predict: the defaults, and what the strategy declares as worth searching."""
    # With its defaults, data parallelism on one worker is no strategy at all.
    if workers > 1 or chosen.family != "data" or len(question.workers) == 1:
        yield {}
    for search in chosen.traits.searched:
        if search.knob != LAYOUT:
            yield from search.settings(workers, question.hardware, question.knobs)


def simplicity(name: str, workers: int) -> tuple[int, int, int, int]:
    """The sort key among equals: fewer workers, simpler families, synchronous strategies, PyTorch.

    Efficiencies in the system files are those of PyTorch, so that of frameworks that tie it is the one best known.
    """
    chosen = strategy(name)
    order = ("single", "data", "server", "model", "hybrid", "fake")
    return workers, order.index(chosen.family), int(not chosen.synchronous), int(chosen.framework != "torch")
