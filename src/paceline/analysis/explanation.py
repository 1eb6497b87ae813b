"""Sentences that explain from its breakdown why a strategy scales as it does, and from which batch on it would pay."""

from collections.abc import Sequence

from paceline.analysis.rows import Row
from paceline.analysis.thresholds import LEAST_GAIN
from paceline.breakdown import RankBreakdown, mean_parts
from paceline.runs.loading import keeping_up, wait_text
from paceline.spec import SPREADING_FIELDS
from paceline.strategies import strategy_of_stored
from paceline.units import format_bytes, format_percent, format_seconds

# A part below this share of the step is not worth a word.
LEAST_SHARE = 0.02


def serial_fraction(speedup: float, workers: int) -> float | None:
    """The share of the work that did not speed up, seen from outside (Karp and Flatt, 1990)."""
    if workers < 2 or speedup <= 0:
        return None
    return (1 / speedup - 1 / workers) / (1 - 1 / workers)


def explain(row: Row, rows: Sequence[Row]) -> list[str]:
    """Sentences about one configuration; of one worker only what its batches cost, and none if nothing was measured."""
    if not row.measured or row.spec.workers < 2:
        return _input(row) if row.measured else []
    sentences = [_outcome(row), *progress(row), *_input(row)]
    if row.breakdown:
        sentences += _parts(row.breakdown)
        sentences += _compute_inflation(row, rows)
        sentences += _break_even(row)
    else:
        sentences.append("Where the time goes is not known: run it with --breakdown.")
    return sentences


def _outcome(row: Row) -> str:
    workers = row.spec.workers
    if row.speedup is None:
        return f"There is no run on one worker to compare {workers} workers with; add --workers 1,{workers}."
    if row.speedup < 1:
        return f"One worker is faster: {workers} workers reach {row.speedup:.2f} times its speed."
    if row.speedup < LEAST_GAIN:
        return f"{workers} workers are no faster than one ({row.speedup:.2f} times)."
    fraction = serial_fraction(row.speedup, workers) or 0.0
    sentence = f"{workers} workers are {row.speedup:.2f} times as fast as one"
    if row.efficiency is None:
        return f"{sentence}, oversubscribed (more processes than cores): that does not show how well it scales."
    serial = f"; as if {format_percent(max(0.0, fraction))} of the work did not speed up" if fraction > 0 else ""
    return f"{sentence}, {format_percent(row.efficiency)} of ideal{serial}."


def progress(row: Row) -> list[str]:
    """How much sooner more workers are done, where their larger batch makes each sample worth less; else nothing."""
    several = row.spec.workers > 1 and row.spec.scaling == "weak"
    if row.speedup is None or row.progress_speedup is None or not row.noise_scale or not several:
        return []
    worth, alone = row.progress_speedup / row.speedup, row.spec.samples_per_step // row.spec.workers
    return [
        f"{row.spec.workers} workers are {row.speedup:.2f} times as fast in samples/s and {row.progress_speedup:.2f} "
        f"times in progress: with a gradient noise scale of about {row.noise_scale:,.0f} samples, one of a batch of "
        f"{row.spec.samples_per_step:,} is worth {format_percent(worth)} of one of a batch of {alone:,}."
    ]


def _input(row: Row) -> list[str]:
    """Says that reading data, and not the strategy, sets the pace, and what would keep up with the training."""
    if row.loading is None or not row.loading.limits:
        return []
    advice = keeping_up(row.loading, row.spec)
    return [
        f"Reading data, not the strategy, sets the pace: {wait_text(row.loading)}. {advice[:1].upper()}{advice[1:]}."
    ]


def _parts(ranks: Sequence[RankBreakdown]) -> list[str]:
    parts, step = mean_parts(ranks), sum(rank.step for rank in ranks) / len(ranks)
    computing = sum(parts[name] for name in ("forward", "backward", "optimizer"))
    sentences = [f"Computation is {format_percent(computing / step)} of a step of {format_seconds(step)}."]
    for name, words in (
        ("input", "is input: reading the batch and moving it to the device"),
        ("exposed", "is exposed communication"),
        ("waiting", "is waiting for slower ranks"),
        ("other", "is none of these: the framework's own work between them"),
    ):
        if parts[name] / step >= LEAST_SHARE:
            more = _transfer(ranks) if name == "exposed" else _slowest_rank(ranks) if name == "waiting" else ""
            sentences.append(f"{format_percent(parts[name] / step)} of the step {words}{more}.")
    hidden = sum(rank.overlapped for rank in ranks) / len(ranks)
    if hidden / step >= LEAST_SHARE:
        sentences.append(f"{format_seconds(hidden)} of transfer is hidden behind computation and costs nothing.")
    return sentences


def _transfer(ranks: Sequence[RankBreakdown]) -> str:
    """How many bytes a step sends, and at which rate."""
    heaviest = max(ranks, key=lambda rank: rank.sent_bytes)
    if not heaviest.sent_bytes or not heaviest.communication:
        return ""
    speed = heaviest.sent_bytes / heaviest.communication
    return f": {format_bytes(heaviest.sent_bytes)} per step at {format_bytes(speed)}/s"


def _slowest_rank(ranks: Sequence[RankBreakdown]) -> str:
    """The rank that the others mostly wait for."""
    latest = min(ranks, key=lambda rank: rank.waiting)
    return f", mostly for rank {latest.rank}" if len(ranks) > 1 else ""


def _compute_inflation(row: Row, rows: Sequence[Row]) -> list[str]:
    """Whether the workers together compute longer than one worker does for the same batch."""
    single = [other for other in rows if other.spec.workers == 1 and other.breakdown and _alike(other, row)]
    if not single or row.spec.scaling != "strong":
        return []
    names = ("forward", "backward")
    alone, shared = (sum(mean_parts(side.breakdown)[name] for name in names) for side in (single[0], row))
    inflated = shared * row.spec.workers / alone if alone else 1.0
    if inflated < 1 + 5 * LEAST_SHARE:
        return []
    return [
        f"Together the workers compute {inflated:.2f} times as long as one does for the same batch: "
        f"smaller shares and shared caches and memory are less efficient."
    ]


def _alike(other: Row, row: Row) -> bool:
    drop = {*SPREADING_FIELDS, "link"}
    same = other.spec.model_dump(exclude=drop) == row.spec.model_dump(exclude=drop)
    return same and other.spec.strategy in (row.spec.strategy, row.baseline)


def _break_even(row: Row) -> list[str]:
    """The batch from which on the computing time saved outweighs exposed communication and waiting."""
    parts, workers = mean_parts(row.breakdown), row.spec.workers
    computing = (parts["forward"] + parts["backward"]) * workers
    cost = parts["exposed"] + parts["waiting"]
    if row.spec.scaling != "strong" or computing <= 0 or row.speedup is None or row.speedup >= LEAST_GAIN:
        return []
    # By how much a step must compute longer, with what is sent and waited for staying as it is.
    growth = cost / (computing * (1 - 1 / workers))
    if growth <= 1:
        return []
    batch = max(1, round(growth * row.spec.samples_per_step))
    sentences = [
        f"At this cost per step {workers} workers pay from a global batch of about {batch:,} on, or with a model that "
        f"computes {growth:.1f} times as much for what it sends."
    ]
    chosen = strategy_of_stored(row.spec.strategy)
    if chosen is not None and chosen.family == "data" and parts["exposed"] > parts["waiting"]:
        # In a ring each of n sends 2 (n - 1) / n of the gradients, and n workers save (n - 1) / n of the computing.
        more = "More workers would not change that: each sends more as it computes less, in the same measure."
        sentences.append(more)
    return sentences
