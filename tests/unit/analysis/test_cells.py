"""Rows as cells for people."""

from paceline.analysis.cells import COLUMNS, cells, row_name, used_columns
from paceline.analysis.rows import summarise


def test_a_cell_has_text_to_read_and_a_value_to_sort_by(make_record):
    one, two = summarise([make_record(1000.0), make_record(1500.0, workers=2)])
    found = dict(zip([column.heading for column in COLUMNS], cells(two), strict=True))
    assert (found["samples/s, last epoch"].text, found["samples/s, last epoch"].value) == ("1,500", 1500.0)
    assert found["speed-up"].text == "1.50x"
    assert found["efficiency"].text == "75 %"
    assert found["accuracy"].text == "90.0 %"
    assert (found["spread"].text, found["spread"].value) == ("", None)
    assert row_name(one, []) == "fake x1"


def test_columns_that_no_row_fills_are_left_out(make_record):
    rows = summarise([make_record(1000.0)])
    shown = [COLUMNS[number].heading for number in used_columns(rows)]
    assert "samples/s, last epoch" in shown
    assert not {"spread", "energy per epoch", "start-up"} & set(shown)
