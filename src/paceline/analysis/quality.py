"""Rows ─► columns that say how well a model learned: its file's metrics, else its accuracy, else its test loss."""

from collections.abc import Sequence

from paceline.analysis.cells import COLUMNS, Column
from paceline.analysis.rows import Row

# Among `COLUMNS`: behind the speed.
QUALITY_PLACE = 5
ACCURACY = Column(
    "accuracy",
    lambda row: row.test_accuracy,
    lambda share: f"{share * 100:.1f} %",
    "of the test set after the last epoch",
)
TEST_LOSS = Column(
    "test loss", lambda row: row.test_loss, "{:.4g}".format, "mean over the test set after the last epoch"
)


def quality_columns(rows: Sequence[Row]) -> list[Column]:
    """The columns for these rows. With a loss of the model's or the user's, and no metric, that is the test loss.

    Of scripts there are none: what they learn is not told.
    """
    if all(row.spec.script is not None for row in rows):
        return []
    names = dict.fromkeys(name for row in rows for name in row.test_metrics)
    if names:
        return [_metric(name) for name in names]
    known = any(row.test_accuracy is not None for row in rows) or all(row.test_loss is None for row in rows)
    return [ACCURACY] if known else [TEST_LOSS]


def _metric(name: str) -> Column:
    return Column(
        name, lambda row: row.test_metrics.get(name), "{:.4g}".format, "mean over the test set after the last epoch"
    )


def all_columns(rows: Sequence[Row]) -> list[Column]:
    """`COLUMNS` with those of these rows among them."""
    return [*COLUMNS[:QUALITY_PLACE], *quality_columns(rows), *COLUMNS[QUALITY_PLACE:]]


def used_columns(rows: Sequence[Row]) -> list[Column]:
    """The columns in which any row has a value."""
    return [column for column in all_columns(rows) if any(column.value(row) is not None for row in rows)]
