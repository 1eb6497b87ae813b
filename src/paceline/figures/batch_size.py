"""Second-epoch samples per second against workers, by batch size (figure 5b of Ramkeesoon's study)."""

from paceline.analysis.factors import BATCH
from paceline.figures.against_workers import Form, applies_to, draw_as, level_points, second_epoch_rate
from paceline.figures.base import Figure

FORM = Form(
    title="Samples per second by batch size, second epoch",
    axis="samples/s, second epoch",
    lines="Lines: batch (of all workers in strong scaling, of each in weak scaling)",
    factor=BATCH,
    points=level_points(BATCH, second_epoch_rate),
)
FIGURE = Figure("batch-size", "Do larger batches scale better?", applies_to(FORM), draw_as(FORM), place=21)
