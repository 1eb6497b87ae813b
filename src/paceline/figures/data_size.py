"""Second-epoch samples per second against workers, by data size (figure 5e of Ramkeesoon's study)."""

from paceline.analysis.factors import DATA
from paceline.figures.against_workers import Form, applies_to, draw_as, level_points, second_epoch_rate
from paceline.figures.base import Figure

FORM = Form(
    title="Samples per second by data size, second epoch",
    axis="samples/s, second epoch",
    lines="Lines: the data so many times over",
    factor=DATA,
    points=level_points(DATA, second_epoch_rate),
)
FIGURE = Figure("data-size", "Does more data change the speed?", applies_to(FORM), draw_as(FORM), place=24)
