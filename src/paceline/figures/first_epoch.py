"""Samples per second of the first epoch against the second (figure 5d of Ramkeesoon's study)."""

from collections.abc import Sequence

from paceline.analysis.factors import NO_FACTOR
from paceline.analysis.rows import Row
from paceline.figures.against_workers import Form, Line, applies_to, draw_as
from paceline.figures.base import Figure


def both_epochs(row: Row) -> Sequence[Line]:
    """A point for each of the first two epochs."""
    names = ("first", "second")
    return [
        (name, float(place), epoch.samples_per_second)
        for place, (name, epoch) in enumerate(zip(names, row.epochs, strict=False))
        if len(row.epochs) > 1
    ]


FORM = Form(
    title="Samples per second of the first epoch and of the second",
    axis="samples/s",
    lines="Lines: epoch; the first carries compiling, tracing and filling of pools",
    factor=NO_FACTOR,
    points=both_epochs,
    by_level=False,
)
FIGURE = Figure("first-epoch", "What does the first epoch cost?", applies_to(FORM), draw_as(FORM), place=23)
