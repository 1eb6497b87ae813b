"""What a figure is, and the style that all figures share."""

import json
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import altair

from paceline.analysis.labels import shorten_titles
from paceline.analysis.rows import Row
from paceline.user_input.printable import printable

# Okabe and Ito, "Color Universal Design" (2008): told apart with any kind of colour vision, and in print; without their
# yellow, in which words on white paper cannot be read.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
# Text and lines that a dark page turns light; nothing else has these colours.
INK, SOFT, FAINT, GRID = "#222222", "#595959", "#888888", "#e5e5e5"
# Series beyond what colours can tell apart.
OTHERS = "#b5b5b5"
PANEL_WIDTH, PANEL_HEIGHT = 660, 300
SMALL_WIDTH, SMALL_HEIGHT = 250, 220
# Characters of a subtitle line above one panel, several panels and a small one.
SUBTITLE_CHARACTERS, WIDE_SUBTITLE_CHARACTERS, SMALL_SUBTITLE_CHARACTERS = 112, 130, 44
# Series that others printed end so, and are drawn in ink.
PUBLISHED = "(published)"
# More settings than this are chosen from a list instead of drawn side by side.
MOST_SETTINGS = 3
CHOICE = "setting_choice"

Value = dict[str, Any]


@dataclass(frozen=True)
class _Values:
    """Values that Altair hands on as they are: it would copy and check lists one by one, again at every step."""

    values: list[Value]
    # Altair asks whatever has a schema and `to_dict` for its content.
    _schema: ClassVar[dict[str, str]] = {"type": "array"}

    def to_dict(self) -> list[Value]:
        return self.values

    def __iter__(self) -> Iterator[Value]:
        return iter(self.values)


def inline_data(values: Iterable[Value]) -> altair.Data:
    """The values as data of a chart."""
    data = altair.Data(values=[])
    data["values"] = _Values(list(values))
    return data


@dataclass(frozen=True)
class Figure:
    """One figure: the question it answers, whether the rows can answer it, and how it is drawn."""

    name: str
    question: str
    # What of the rows it can draw, or whether it can: nothing, or False, where they do not answer the question.
    applies: Callable[[Sequence[Row]], object]
    draw: Callable[[Sequence[Row]], altair.TopLevelMixin]
    # Where it stands in a report: what decides comes first.
    place: int


def apply_theme(chart: altair.TopLevelMixin) -> altair.TopLevelMixin:
    """The chart with the style of all figures: light axes, readable type."""
    return (
        chart.configure_axis(labelFontSize=12, titleFontSize=12, titleFontWeight="normal", labelColor=INK,
                             titleColor=INK, gridColor=GRID, domainColor=FAINT, tickColor=FAINT, labelLimit=260)
        .configure_view(stroke=None)
        .configure_header(labelFontSize=13, labelFontWeight="bold", labelColor=INK, title=None)
        .configure_legend(labelFontSize=12, titleFontSize=12, labelLimit=300, labelColor=INK, titleColor=INK)
        .configure_title(fontSize=13, anchor="start", color=INK, subtitleColor=SOFT, subtitleFontSize=12,
                         subtitlePadding=4)
        .configure_text(fontSize=11, color=INK)
        .configure_range(category=list(PALETTE))
    )  # fmt: skip


def compose_chart(
    drawing: "Drawing", rows: Sequence[Row], title: str, how: Iterable[str], *, columns: int = 1,
    share: Sequence[str] = (),
) -> altair.TopLevelMixin:  # fmt: skip
    """The panels under one title, with notes on how to read them; `share` names scales that all panels share."""
    words = ". ".join([*how, *([f"All: {drawing.common}"] if drawing.common else []), *shrunk_notes(rows)])
    line = SUBTITLE_CHARACTERS if columns == 1 else WIDE_SUBTITLE_CHARACTERS
    chart = altair.concat(*drawing.panels, columns=columns, spacing={"row": 28, "column": 44})
    # The list's choice stands in the title, so that a picture without a list says what it shows.
    words_of_title = json.dumps(printable(title))
    text: Any = title if drawing.choice is None else altair.ExprRef(f"[{words_of_title}, {CHOICE}]")
    chart = chart.properties(title=altair.TitleParams(text, subtitle=wrap_lines(words, line), fontSize=15, offset=14))
    chart = chart.resolve_scale(**dict.fromkeys(("color", "shape", "strokeDash"), "independent"))
    if share:
        chart = chart.resolve_scale(**dict.fromkeys(share, "shared"))
    return apply_theme(chart.add_params(drawing.choice) if drawing.choice is not None else chart)


def wrap_lines(words: str, characters: int) -> list[str]:
    """The words as lines of a subtitle."""
    return textwrap.wrap(words, characters, break_on_hyphens=False)


def shrunk_notes(rows: Sequence[Row]) -> list[str]:
    """Notes that say what was made smaller than the study asks for."""
    texts = dict.fromkeys(row.spec.shrunk.text for row in rows if row.spec.shrunk is not None)
    return [f"Shrunk: {text}" for text in texts]


# Draws a panel of a setting; None where the setting has nothing to show in it.
Panel = Callable[[altair.Chart, str], altair.Chart | None]


@dataclass(frozen=True)
class Drawing:
    """Panels, the list to choose a setting from where there is one, and what all settings have in common."""

    panels: Sequence[altair.Chart]
    choice: altair.Parameter | None = None
    common: str = ""


def per_setting(values: Mapping[str, Sequence[Value]], panel: Panel, *more: Panel) -> Drawing:
    """Panels for each setting or, where there are many, for one that is chosen from a list, the fullest at first."""
    short, common = shorten_titles(list(values))
    named = dict(zip(short, values.values(), strict=True))
    kinds = (panel, *more)
    if len(named) == 1 and more:
        ((title, members),) = named.items()
        base = altair.Chart(inline_data(members))
        return Drawing(_drawn([(base, "")], kinds), common=title)
    if len(named) <= MOST_SETTINGS:
        bases = [(altair.Chart(inline_data(members)), title) for title, members in named.items()]
        return Drawing(_drawn(bases, kinds), common=common)
    bind = altair.binding_select(options=list(named), name="setting: ")
    choice = altair.param(name=CHOICE, value=fullest(named), bind=bind)
    everything = [{**value, "setting": title} for title, members in named.items() for value in members]
    base = altair.Chart(inline_data(everything)).transform_filter(f"datum.setting == {CHOICE}")
    return Drawing(_drawn([(base, "")], kinds), choice, common)


def _drawn(bases: Sequence[tuple[altair.Chart, str]], kinds: Sequence[Panel]) -> list[altair.Chart]:
    """The panels of each setting that have something to show."""
    drawn = [draw_panel(base, title) for base, title in bases for draw_panel in kinds]
    return [panel for panel in drawn if panel is not None]


def fullest(values: Mapping[str, Sequence[Value]]) -> str:
    """The setting with most to show; the last of equals, which has the larger data and batch."""
    return max(reversed(list(values)), key=lambda title: len(values[title]))


def colours(names: Sequence[str], panels: Iterable[Iterable[str]] = (), **options: Any) -> altair.Color:
    """One colour for each series; those that colours cannot tell apart any more are grey.

    `panels` names the series of each panel: two that are never drawn together may have the same colour.
    """
    ours = [name for name in names if not name.endswith(PUBLISHED)]
    panel_series = [set(panel) for panel in panels] or [set(ours)]
    colour_of = dict.fromkeys(names, INK) | dict.fromkeys(ours, OTHERS)
    for name in ours:
        used = {colour_of[other] for panel in panel_series if name in panel for other in panel if other in colour_of}
        colour_of[name] = next((colour for colour in PALETTE if colour not in used), OTHERS)
    scale = altair.Scale(domain=list(colour_of), range=list(colour_of.values()))
    return altair.Color("series:N", title=None, scale=scale, **options)
