"""Seconds of the second epoch against workers, by data size (figure 5c of Ramkeesoon's study)."""

from paceline.analysis.factors import DATA
from paceline.analysis.rows import Row
from paceline.analysis.statistics import Band
from paceline.figures.against_workers import Form, applies_to, draw_as, level_points
from paceline.figures.base import Figure


def second_epoch_seconds(row: Row) -> Band | None:
    """Wall clock of the second epoch."""
    return row.epochs[1].seconds if len(row.epochs) > 1 else None


FORM = Form(
    title="Seconds of the second epoch by data size",
    axis="seconds, second epoch",
    lines="Lines: the data so many times over",
    factor=DATA,
    points=level_points(DATA, second_epoch_seconds),
)
FIGURE = Figure(
    "data-seconds", "How much time do workers save on more data?", applies_to(FORM), draw_as(FORM), place=22
)
