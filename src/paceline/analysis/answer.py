"""The answer: of a setting in one sentence, of a report in three (what to use, why it is fast, how certain that is)."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.analysis.explanation import serial_fraction
from paceline.analysis.factors import setting_size
from paceline.analysis.labels import group_by_setting, series_name, shorten_titles, varying_fields
from paceline.analysis.links import fastest_over_each, links_of, where_each_pays
from paceline.analysis.rows import Row
from paceline.breakdown import mean_parts
from paceline.units import format_count, format_percent, format_rate, format_seconds

FEW_REPEATS = 3


@dataclass(frozen=True)
class Answer:
    """Three sentences about one setting, and which setting that is."""

    setting: str
    sentences: tuple[str, ...]


def answer(rows: Sequence[Row]) -> Answer | None:
    """The answer over all settings, with details of the setting with the largest model, data and batch.

    None when nothing was measured.
    """
    settings = group_by_setting(rows, without={"shrunk", "link"})
    measured = {title: [row for row in members if row.measured] for title, members in settings.items()}
    measured = {title: members for title, members in measured.items() if members}
    if not measured:
        return None
    title = max(measured, key=lambda name: setting_size(measured[name][0]))
    members = measured[title]
    best = max(members, key=_rate)
    if len(links_of(members)) > 1:
        sentences = (_over_links(members), where_each_pays(members), _repeats(members))
        return Answer(title, tuple(f"{sentence}." for sentence in sentences if sentence))
    return Answer(title, (_what(best, members, measured, title), _why(best, members), _how_sure(best, members)))


def headline(rows: Sequence[Row]) -> str | None:
    """The fastest configuration of a setting in a sentence, with those that chance could make as fast; None if none."""
    measured = [row for row in rows if row.measured]
    if not measured:
        return None
    if len(links_of(measured)) > 1:
        sentences = (_over_links(measured), where_each_pays(measured))
        return " ".join(f"{sentence}." for sentence in sentences if sentence)
    varying, best = varying_fields(measured), max(measured, key=_rate)
    workers = format_count(best.spec.workers, "worker")
    text = f"Fastest here: {series_name(best, varying)} with {workers}, {format_rate(_rate(best))} samples/s"
    if best.spec.workers == 1 and any(row.spec.workers > 1 for row in measured):
        text += "; more workers do not pay here"
    text += _gain(best)
    if rivals := _as_fast(best, measured):
        others = ", ".join(f"{series_name(row, varying)} x{row.spec.workers}" for row in rivals)
        text += f"; its repeats overlap with those of {others}, so take them as equal"
    return text + "."


def _over_links(rows: Sequence[Row]) -> str:
    sentence = fastest_over_each(rows)
    return sentence[:1].upper() + sentence[1:]


def _repeats(rows: Sequence[Row]) -> str:
    fewest = min(row.runs for row in rows)
    few = f", too few to tell chance from effect (--repeats {FEW_REPEATS})" if fewest < FEW_REPEATS else ""
    return f"How sure: {format_count(fewest, 'repeat')} of each{few}"


def _rate(row: Row) -> float:
    return row.samples_per_second or 0.0


def _gain(best: Row) -> str:
    """What several workers gain over one; empty for one, and where one was not run."""
    if best.spec.workers == 1 or best.speedup is None:
        return ""
    ideal = f" ({format_percent(best.efficiency)} of ideal)" if best.efficiency is not None else ""
    return f", {best.speedup:.2f} times one worker{ideal}"


def _as_fast(best: Row, rows: Sequence[Row]) -> list[Row]:
    """Rows with a repeat that is no slower than the slowest of the best."""
    low = best.samples_per_second_low or 0.0
    return [row for row in rows if row is not best and (row.samples_per_second_high or 0.0) >= low]


def _what(best: Row, rows: Sequence[Row], measured: dict[str, list[Row]], title: str) -> str:
    """Says what to use, and what it gains over one worker."""
    name, workers = series_name(best, varying_fields(rows)), format_count(best.spec.workers, "worker")
    gain = f"{format_rate(_rate(best))} samples/s{_gain(best)}"
    if best.spec.workers == 1 and any(row.spec.workers > 1 for row in rows):
        several = max((row for row in rows if row.spec.workers > 1), key=_rate)
        gain += f"; more workers do not pay here (at most {format_rate(_rate(several))} samples/s with several)"
    if len(measured) == 1:
        return f"Use {name} with {workers}: {gain}."
    short = dict(zip(measured, shorten_titles(list(measured))[0], strict=True))[title]
    if len({row.spec.strategy for members in measured.values() for row in members}) == 1:
        return f"In the largest of {len(measured)} settings, {short}, use {name} with {workers}: {gain}."
    wins = Counter(max(members, key=_rate).spec.strategy for members in measured.values())
    most, count = wins.most_common(1)[0]
    return (
        f"{most} is the fastest in {count} of {len(measured)} settings; in the largest, {short}, use {name} with "
        f"{workers}: {gain}."
    )


def _why(best: Row, rows: Sequence[Row]) -> str:
    """Says what fills the steps of the best, if it was instrumented, and how close the next strategy comes."""
    rivals = [row for row in rows if row.spec.strategy != best.spec.strategy]
    behind = ""
    if rivals:
        next_best = max(rivals, key=_rate)
        behind = (
            f"the next strategy, {next_best.spec.strategy} with {format_count(next_best.spec.workers, 'worker')}, "
            f"reaches {format_percent(_rate(next_best) / _rate(best))} of it"
        )
    if best.breakdown:
        parts, step = mean_parts(best.breakdown), sum(rank.step for rank in best.breakdown) / len(best.breakdown)
        computing = sum(parts[name] for name in ("input", "forward", "backward", "optimizer")) / step
        others = [
            f"{format_percent(parts[part] / step)} is {words}" for part, words in _LOSSES if parts[part] / step > 0.01
        ]
        filled = f"Why: {format_percent(computing)} of a step of {format_seconds(step)} is computing"
        return "; ".join([", ".join([filled, *others]), *([behind] if behind else [])]) + "."
    fraction = serial_fraction(best.speedup, best.spec.workers) if best.speedup and best.spec.workers > 1 else None
    if fraction is not None:
        alone = f"it scales as if {format_percent(max(0.0, fraction))} of the work did not speed up"
    else:
        alone = "it needs no communication" if best.spec.workers == 1 else "there is no single worker to compare with"
    more = " (run --breakdown tells where the time goes)" if best.spec.workers > 1 else ""
    return f"Why: {alone}{more}{'; ' + behind if behind else ''}."


_LOSSES = (("exposed", "exposed communication"), ("waiting", "waiting for slower ranks"))


def _how_sure(best: Row, rows: Sequence[Row]) -> str:
    """Says how many repeats there are, which rivals chance could explain, and whether cores were oversubscribed."""
    varying = varying_fields(rows)
    remarks = [
        f"{format_count(best.runs, 'repeat')}" + (f" within {format_percent(best.spread)}" if best.spread else "")
    ]
    equal = _as_fast(best, rows)
    if best.runs < FEW_REPEATS:
        remarks.append(f"too few to tell chance from effect (--repeats {FEW_REPEATS})")
    elif equal:
        names = ", ".join(f"{series_name(row, varying)} x{row.spec.workers}" for row in equal[:FEW_REPEATS])
        remarks.append(f"which overlap with those of {names}, so take them as equal")
    else:
        remarks.append("which no other configuration reaches")
    if best.oversubscribed:
        remarks.append(
            "oversubscribed (more processes than cores), so it says little about a machine with enough cores"
        )
    return f"How sure: {', '.join(remarks)}."
