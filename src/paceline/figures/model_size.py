"""Second-epoch samples per second against workers, by model size (figure 5a of Ramkeesoon's study)."""

from paceline.analysis.factors import MODEL
from paceline.figures.against_workers import Form, applies_to, draw_as, level_points, second_epoch_rate
from paceline.figures.base import Figure

FORM = Form(
    title="Samples per second by model size, second epoch",
    axis="samples/s, second epoch",
    lines="Lines: parameters of the model",
    factor=MODEL,
    points=level_points(MODEL, second_epoch_rate),
)
FIGURE = Figure("model-size", "Do larger models scale better?", applies_to(FORM), draw_as(FORM), place=20)
