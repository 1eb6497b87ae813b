"""What to use over which link, where a study varied it: the fastest over each, and from where on a strategy pays."""

from collections.abc import Sequence

from paceline.analysis.factors import LINK
from paceline.analysis.labels import series_name, varying_fields
from paceline.analysis.rows import Row
from paceline.analysis.thresholds import LEAST_GAIN
from paceline.analysis.verdicts.certainty import Certainty
from paceline.analysis.verdicts.judge import judge_rows
from paceline.link import NetworkLink, link_rank
from paceline.units import format_rate


def links_of(rows: Sequence[Row]) -> list[NetworkLink]:
    """The links that were measured, the slowest first."""
    links = {row.spec.link for row in rows if row.measured and row.spec.link is not None}
    return sorted(links, key=link_rank)


def name_without_link(row: Row, varying: Sequence[str]) -> str:
    """The strategy and what tells it from others, except for the link."""
    return series_name(row, [name for name in varying if name not in LINK.fields])


def over_link(rows: Sequence[Row], link: NetworkLink) -> list[Row]:
    """What was measured over a link, and one worker, which crosses none."""
    measured = [row for row in rows if row.measured]
    return [row for row in measured if row.spec.link == link or (row.spec.link is None and row.spec.workers == 1)]


def fastest_over_each(rows: Sequence[Row]) -> str:
    """A sentence that says what to use over each link; links in a row with the same answer are named together."""
    choices: list[tuple[str, list[tuple[str, Row]]]] = []
    for link in links_of(rows):
        verdict, best = judge_rows(over_link(rows, link), LINK.fields)
        name = " or ".join(verdict.names) if best.spec.link or verdict.equals else "one worker"
        name += f" ({'open' if verdict.word == 'open' else 'a tie'})" if verdict.certainty is Certainty.TIE else ""
        if not choices or choices[-1][0] != name:
            choices.append((name, []))
        choices[-1][1].append((link.text, best))
    return "; ".join(f"over {_from_to(members)} use {name} ({_rates(members)})" for name, members in choices)


def _from_to(members: Sequence[tuple[str, Row]]) -> str:
    return members[0][0] if len(members) == 1 else f"{members[0][0]} to {members[-1][0]}"


def _rates(members: Sequence[tuple[str, Row]]) -> str:
    rates = list(dict.fromkeys(format_rate(_rate(row)) for _, row in (members[0], members[-1])))
    return f"{' to '.join(rates)} samples/s"


def where_each_pays(rows: Sequence[Row]) -> str:
    """From which link on each strategy beats one worker, in a sentence; empty where one worker was not measured."""
    varying, phrases = varying_fields(rows), []
    series: dict[str, list[Row]] = {}
    for row in rows:
        if row.spec.workers > 1 and row.speedup is not None and row.spec.link is not None:
            series.setdefault(f"{name_without_link(row, varying)} x{row.spec.workers}", []).append(row)
    for name, members in series.items():
        paying = [row for row in sorted(members, key=LINK.level) if (row.speedup or 0.0) >= LEAST_GAIN]
        every = all((row.speedup or 0.0) >= LEAST_GAIN for row in members)
        if not paying:
            phrases.append(f"{name} over none of them")
        elif every:
            phrases.append(f"{name} over all of them")
        else:
            assert paying[0].spec.link is not None
            phrases.append(f"{name} from {paying[0].spec.link.text} on")
    return f"More than one worker pays with {', '.join(phrases)}" if phrases else ""


def _rate(row: Row) -> float:
    return row.samples_per_second or 0.0
