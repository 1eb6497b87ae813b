"""What a figure is, and the looks that all figures share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import altair

from paceline.analysis.rows import Row

# Okabe and Ito, "Color Universal Design" (2008): told apart with any kind of colour vision, and in print.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
PANEL_WIDTH, PANEL_HEIGHT = 560, 300


@dataclass(frozen=True)
class Figure:
    """One figure: the question it answers, whether the rows can answer it, and how it is drawn."""

    name: str
    question: str
    applies: Callable[[Sequence[Row]], bool]
    draw: Callable[[Sequence[Row]], altair.TopLevelMixin]
    # Where it stands in a report: what decides comes first.
    place: int


def themed(chart: altair.TopLevelMixin) -> altair.TopLevelMixin:
    """Quiet axes, readable type."""
    return (
        chart.configure_axis(
            labelFontSize=12, titleFontSize=12, gridColor="#e5e5e5", domainColor="#888", tickColor="#888"
        )
        .configure_view(stroke=None)
        .configure_header(labelFontSize=13, labelFontWeight="bold", title=None)
        .configure_legend(labelFontSize=12, titleFontSize=12, labelLimit=300)
        .configure_title(fontSize=14, anchor="start", subtitleColor="#555")
    )
