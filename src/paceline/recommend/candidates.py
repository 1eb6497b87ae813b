"""What is worth predicting for a question: strategies, worker counts, and settings of strategies that decide much."""

from collections.abc import Iterator, Mapping, Sequence

from paceline.contract.strategy import Knob
from paceline.predict.question import Question
from paceline.spec import Scalar
from paceline.strategies import Strategy, strategy

# Up to so many worker counts are all looked at; of more, powers of two and the ends.
ALL_COUNTS = 16
# Settings by the name of the knob, whichever strategy has it: sizes of a group of workers, parts of a batch.
GROUP_SIZES = (2, 4, 8, 16)
PARTS = (4, 16)


def worker_counts(asked: Sequence[int]) -> tuple[int, ...]:
    """Those to look at, in order."""
    counts = sorted(set(asked))
    if len(counts) <= ALL_COUNTS:
        return tuple(counts)
    powers = {count for count in counts if count & (count - 1) == 0}
    return tuple(sorted({counts[0], *powers, counts[-1]}))


def needs_company(chosen: Strategy, workers: int) -> bool:
    """Whether one worker alone would be the same as no strategy, with more in the way."""
    return workers == 1 and chosen.family not in ("single", "data", "fake")


def variants(chosen: Strategy, question: Question, workers: int) -> Iterator[dict[str, Scalar]]:
    """Settings to try: the defaults, and for knobs that set the shape of a strategy a few others."""
    # With its defaults, data parallelism on one worker is no strategy at all.
    if workers > 1 or chosen.family != "data" or len(question.workers) == 1:
        yield {}
    knobs, asked = {knob.name: knob for knob in chosen.knobs}, question.knobs
    if "accumulation" in knobs and "accumulation" not in asked:
        for parts in PARTS:
            yield {"accumulation": parts}
    for name in ("stages", "tensor"):
        if name in knobs and name not in asked:
            for size in GROUP_SIZES:
                fits = size <= workers and workers % size == 0 and size != knobs[name].default
                # Splitting layers is for devices that share the fastest link.
                if fits and (name != "tensor" or size <= question.hardware.node_devices):
                    yield from ({name: size, **more} for more in _parts(knobs, asked))
    if "stages" not in knobs:
        yield from (more for more in _parts(knobs, asked) if more)
    if "hsdp_replicas" in knobs and "hsdp_replicas" not in asked and question.hardware.kind == "cuda":
        nodes, rest = divmod(workers, question.hardware.node_devices)
        if nodes > 1 and not rest:
            yield {"hsdp_replicas": nodes}


def _parts(knobs: Mapping[str, Knob], asked: dict[str, Scalar]) -> Iterator[dict[str, Scalar]]:
    """Micro-batches, and the schedule that holds fewer of them at a time."""
    yield {}
    if "microbatches" in knobs and "microbatches" not in asked:
        schedules: tuple[dict[str, Scalar], ...] = ({},)
        if "schedule" in knobs and "schedule" not in asked:
            schedules = ({}, {"schedule": "1f1b"})
        yield from ({"microbatches": parts, **more} for parts in PARTS for more in schedules)


def simplicity(name: str, workers: int) -> tuple[int, int, int, int]:
    """What to prefer among equals: fewer workers, plainer families, synchronous, PyTorch.

    Efficiencies in the system files are those of PyTorch, so that of frameworks that tie it is the one best known.
    """
    chosen = strategy(name)
    order = ("single", "data", "server", "model", "hybrid", "fake")
    return workers, order.index(chosen.family), int(not chosen.synchronous), int(chosen.framework != "torch")
