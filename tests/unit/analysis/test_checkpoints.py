"""What checkpoints took, from records made by hand."""

from typing import Any

import pytest

from paceline.analysis.checkpoints import CheckpointCost, summarise_checkpoints
from paceline.analysis.frame import flat_row
from paceline.analysis.rows import summarise
from paceline.record import Rank, RankCheckpoint, Record, Save


def saving(make_record: Any, *ranks: list[float]) -> Record:
    record: Record = make_record(rate=1000.0, checkpoint_every=5)
    made = [
        Rank(
            rank=number, role="worker", cores=(number,), cpu_seconds=1.0, peak_memory_bytes=1,
            checkpoint=RankCheckpoint(
                saves=tuple(Save(step=place, seconds=each, bytes=3_000) for place, each in enumerate(seconds)),
                load_seconds=0.1 * (number + 1),
            ) if seconds else None,
        )
        for number, seconds in enumerate(ranks)
    ]  # fmt: skip
    return record.model_copy(update={"ranks": tuple(made)})


def test_a_save_takes_as_long_as_its_slowest_rank(make_record: Any) -> None:
    cost = summarise_checkpoints([saving(make_record, [1.0, 0.1, 0.2], [0.3, 0.5, 0.1], [])], 1000.0)
    # The slowest of each save: 1.0, 0.5, 0.2.
    assert cost.checkpoint_save_seconds == 0.5
    assert cost.checkpoint_load_seconds == pytest.approx(0.2)
    assert (cost.checkpoint_bytes, cost.checkpoint_writers) == (6_000, 2)
    # 5 steps of 100 samples take half a second at 1,000 samples/s, and so does the save.
    assert cost.checkpoint_share == pytest.approx(1.0)


def test_runs_that_saved_nothing_have_no_costs(make_record: Any) -> None:
    assert summarise_checkpoints([make_record()], 1000.0) == CheckpointCost()


def test_the_costs_are_columns_of_a_row(make_record: Any) -> None:
    (row,) = summarise([saving(make_record, [0.5])])
    assert flat_row(row)["checkpoint_save_seconds"] == 0.5
    assert flat_row(row)["checkpoint_every"] == 5
