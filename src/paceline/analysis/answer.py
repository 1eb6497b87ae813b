"""Verdicts in words: of a setting in a sentence, of a report in three, or in a short table for several settings."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from paceline.analysis.explanation import serial_fraction
from paceline.analysis.factors import LINK, settings_by_size
from paceline.analysis.labels import group_by_setting, series_name, shorten_titles, varying_fields
from paceline.analysis.links import fastest_over_each, links_of, over_link, where_each_pays
from paceline.analysis.rows import Row
from paceline.analysis.verdicts.certainty import LEAST_RUNS, Certainty
from paceline.analysis.verdicts.judge import Verdict, judge, judge_rows
from paceline.breakdown import mean_parts
from paceline.units import format_count, format_percent, format_rate, format_seconds


@dataclass(frozen=True)
class SettingVerdict:
    """One line of the table of settings."""

    setting: str
    best: str
    ahead: str
    how_sure: str


@dataclass(frozen=True)
class Answer:
    """Sentences about the only setting, with its title, or one about all of several, and then a line for each."""

    setting: str
    sentences: tuple[str, ...]
    lines: tuple[SettingVerdict, ...] = ()


def answer(rows: Sequence[Row]) -> Answer | None:
    """The answer over all settings; None when nothing was measured."""
    settings = group_by_setting([row for row in rows if row.measured], without={"shrunk", "link"})
    if not settings:
        return None
    if len(settings) > 1:
        return Answer("", (_over_settings(rows),), verdict_lines(rows))
    ((title, members),) = settings.items()
    if len(links_of(members)) > 1:
        sentences = (_over_links(members), where_each_pays(members), f"How sure: {_fewest_runs(members)}")
        return Answer(title, tuple(f"{sentence}." for sentence in sentences if sentence))
    verdict, best = judge_rows(members)
    what, why, how_sure = _what(verdict, best, members), _why(best, members), _how_sure(verdict, best)
    return Answer(title, (f"{what}.", why, f"How sure: {how_sure}."))


def headline(rows: Sequence[Row]) -> str | None:
    """The verdict on a setting in a sentence: what is fastest, or ties, and how sure that is; None if none."""
    measured = [row for row in rows if row.measured]
    if not measured:
        return None
    if len(links_of(measured)) > 1:
        sentences = (_over_links(measured), where_each_pays(measured))
        return " ".join(f"{sentence}." for sentence in sentences if sentence)
    verdict, best = judge_rows(measured)
    return f"{_what(verdict, best, measured)}; {_how_sure(verdict, best)}."


def verdict_lines(rows: Sequence[Row]) -> tuple[SettingVerdict, ...]:
    """The verdict on each setting in a line, the smallest first; empty where there is one setting alone."""
    groups = list(_settings(rows))
    titles, _ = shorten_titles([title for title, _ in groups])
    return (
        tuple(_line(title, members) for title, (_, members) in zip(titles, groups, strict=True)) if groups[1:] else ()
    )


def _settings(rows: Sequence[Row]) -> Iterator[tuple[str, list[Row]]]:
    """Settings with what was measured in them; one worker, which crosses no link, is compared over each of them."""
    settings = settings_by_size([row for row in rows if row.measured], without={"shrunk", "link"})
    for title, members in settings.items():
        links = links_of(members)
        for link in links:
            yield f"{title} · link {link.text}", over_link(members, link)
        if not links:
            yield title, members


def _line(title: str, rows: Sequence[Row]) -> SettingVerdict:
    verdict, _ = judge_rows(rows, LINK.fields)
    ahead = "–" if verdict.next is None else f"{format_percent(verdict.ahead)} over {verdict.next.name}"
    runs = format_count(verdict.fewest_runs, "run")
    sure = f"{verdict.word if len(rows) > 1 else 'nothing else'} ({runs})"
    return SettingVerdict(title, " = ".join(verdict.names), ahead, sure)


def _over_settings(rows: Sequence[Row]) -> str:
    """Which strategy is the fastest in how many settings, and in how many that is open."""
    judged = [judge_rows(members, LINK.fields) for _, members in _settings(rows)]
    count, lonely = len(judged), 0
    if len({row.spec.strategy for row in rows if row.measured}) > 1:
        # Where one strategy was measured alone, it has won nothing.
        contested = [(verdict, row) for verdict, row in judged if len(_strategies(verdict)) > 1]
        judged, lonely = contested, count - len(contested)
    # Worker counts of one strategy may tie, and the strategy is still the fastest.
    winners = [{contender.name.partition(" ")[0] for contender in verdict.first} for verdict, _ in judged]
    wins = Counter(name for names in winners for name in names if len(names) == 1)
    undecided = [verdict.word for (verdict, _), names in zip(judged, winners, strict=True) if len(names) > 1]
    unknown = sum(verdict.certainty is Certainty.UNKNOWN for verdict, _ in judged)
    parts = []
    if len({row.spec.strategy for row in rows if row.measured}) == 1:
        parts.append(f"{judged[0][1].spec.strategy} alone was measured, in {count} settings")
    elif wins:
        name, times = wins.most_common(1)[0]
        won = [verdict for (verdict, _), names in zip(judged, winners, strict=True) if names == {name}]
        leads = _leads(name, won)
        unknown -= sum(verdict.certainty is Certainty.UNKNOWN for verdict in won)
        parts.append(f"{name} is the fastest in {times} of {count} settings{_strengths(leads)}")
    parts += [
        f"{_of_all(number, count)} {word}"
        for number, word in (
            (undecided.count("tie"), "is a tie" if undecided.count("tie") == 1 else "are ties"),
            (undecided.count("open"), "is open" if undecided.count("open") == 1 else "are open"),
            (unknown, f"{'has' if unknown == 1 else 'have'} too few runs to be sure"),
            (lonely, f"{'has' if lonely == 1 else 'have'} one strategy alone"),
        )
        if number
    ]
    sentence = "; ".join(parts)
    # A strategy's name keeps its small letter.
    return f"{sentence.replace('all', 'All', 1) if sentence.startswith('all ') else sentence}."


def _strategies(verdict: Verdict) -> set[str]:
    return {contender.name.partition(" ")[0] for contender in verdict.contenders}


def _leads(name: str, won: Sequence[Verdict]) -> Counter[Certainty]:
    """In how many settings it is how sure that a strategy is ahead of all others; empty where there are none."""
    leads = Counter[Certainty]()
    for verdict in won:
        rivals = [contender for contender in verdict.contenders if contender.name.partition(" ")[0] != name]
        if rivals:
            leads[judge([verdict.best, *rivals]).certainty] += 1
    return leads


def _strengths(leads: Counter[Certainty]) -> str:
    words = {lead: _IN_WORDS[lead] for lead in _IN_WORDS if leads[lead]}
    if len(words) < 2:
        return "".join(f", {word}" for word in words.values())
    return f" ({', '.join(f'{word} in {leads[lead]}' for lead, word in words.items())})"


_IN_WORDS = {
    Certainty.SURE: "surely",
    Certainty.LIKELY: "likely",
    Certainty.TIE: "tied",
    Certainty.UNKNOWN: "with too few runs to be sure",
}


def _of_all(number: int, count: int) -> str:
    return f"all {count} settings" if number == count else f"{number} of {count}"


def _over_links(rows: Sequence[Row]) -> str:
    sentence = fastest_over_each(rows)
    return sentence[:1].upper() + sentence[1:]


def _fewest_runs(rows: Sequence[Row]) -> str:
    fewest = min(row.runs for row in rows)
    few = ", too few to tell chance from effect" if fewest < LEAST_RUNS else ""
    return f"{format_count(fewest, 'run')} of each{few}"


def _rate(row: Row) -> float:
    return row.samples_per_second or 0.0


def _gain(best: Row) -> str:
    """What several workers gain over one; empty for one, and where one was not run."""
    if best.spec.workers == 1 or best.speedup is None:
        return ""
    ideal = f" ({format_percent(best.efficiency)} of ideal)" if best.efficiency is not None else ""
    return f", {best.speedup:.2f} times one worker{ideal}"


def _what(verdict: Verdict, best: Row, rows: Sequence[Row]) -> str:
    """What is the fastest and what it gains over one worker, or which are as fast as each other."""
    counted = "steps/s" if best.counts_steps else "samples/s"
    name, workers = series_name(best, varying_fields(rows)), format_count(best.spec.workers, "worker")
    if verdict.certainty is Certainty.TIE:
        rates = [format_rate(contender.median) for contender in (verdict.best, verdict.first[-1])]
        *others, last = verdict.names
        is_open = verdict.word == "open"
        names = f"{', '.join(others)} {'or' if is_open else 'and'} {last}"
        text = f"{'Open' if is_open else 'A tie'}: {names}, {' to '.join(dict.fromkeys(rates))} {counted}"
        if is_open:
            return text
        fewer = verdict.choice.workers < max(contender.workers for contender in verdict.first)
        return f"{text}; {verdict.choice.name} needs the fewest workers" if fewer else text
    text = f"{name} with {workers}, {format_rate(_rate(best))} {counted}{_gain(best)}"
    if len(rows) == 1:
        return f"Measured here: {text}"
    if best.spec.workers == 1 and any(row.spec.workers > 1 for row in rows):
        several = max(_rate(row) for row in rows if row.spec.workers > 1)
        text += f"; more workers were no faster (at most {format_rate(several)} {counted})"
    return f"Fastest here: {text}"


def _how_sure(verdict: Verdict, best: Row) -> str:
    """Whether chance could explain it, and whether cores were oversubscribed."""
    return f"{verdict.how_sure}, but oversubscribed" if best.oversubscribed else verdict.how_sure


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
