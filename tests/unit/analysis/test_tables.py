"""Records as flat tables, from one line per configuration to one line per step and rank."""

import pytest

from paceline.analysis.tables import frame_of, table_of
from paceline.errors import SpecError


@pytest.fixture
def records(make_record):
    first = make_record(1000.0, knobs={"jitter": 0.1}).model_copy(
        update={"id": 7, "step_seconds": {0: (0.1, 0.2), 1: (0.3, 0.4)}, "losses": (2.0, None)}
    )
    return [first, make_record(None, reason="it broke", workers=2)]


def test_configurations_are_the_rows_of_show(records):
    lines = table_of(records)
    assert [(line["workers"], line["status"], line["runs"]) for line in lines] == [(1, "ok", 1), (2, "failed", 0)]


def test_a_run_that_failed_has_its_line_with_the_reason_and_empty_numbers(records):
    good, bad = table_of(records, "runs")
    assert (good["samples_per_second"], good["first_epoch_samples_per_second"]) == (1000.0, 500.0)
    assert (bad["status"], bad["reason"], bad["samples_per_second"]) == ("failed", "it broke", None)
    assert list(good) == list(bad)
    assert (good["knobs.jitter"], bad["knobs.jitter"]) == (0.1, None)


def test_epochs_carry_their_run_and_their_own_rate(records):
    lines = table_of(records, "epochs")
    assert [(line["run"], line["epoch"], line["samples_per_second"]) for line in lines] == [
        (7, 1, 500.0),
        (7, 2, 1000.0),
    ]


def test_steps_are_raw_a_line_for_each_rank_and_a_loss_that_was_not_finite_is_empty(records):
    lines = table_of(records, "steps")
    found = [(line["rank"], line["step"], line["seconds"], line["loss"]) for line in lines]
    assert found == [(0, 0, 0.1, 2.0), (0, 1, 0.2, None), (1, 0, 0.3, 2.0), (1, 1, 0.4, None)]


def test_a_frame_has_types_also_where_the_first_values_are_empty(records):
    frame = frame_of(list(reversed(records)), "runs")
    assert frame["samples_per_second"].to_list() == [None, 1000.0]
    assert frame["workers"].dtype.is_integer()


def test_an_unknown_table_is_refused_with_the_nearest(records):
    with pytest.raises(SpecError, match="there is no table of results 'epoch'; did you mean 'epochs'"):
        table_of(records, "epoch")
