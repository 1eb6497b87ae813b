"""Quantities from text and to text."""

import pytest

from paceline.errors import UserError
from paceline.units import (
    format_bytes,
    format_money,
    format_names,
    format_percent,
    format_rate,
    format_seconds,
    parse_bytes,
    parse_seconds,
    parse_shape,
    parse_whole_numbers,
)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90.0), ("90s", 90.0), ("5m", 300.0), ("2h", 7200.0), ("1.5m", 90.0), (" 3s ", 3.0)]
)
def test_a_length_of_time_is_read_in_seconds_minutes_and_hours(text, seconds):
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "5 days", "-3s", "1e3", "m", "nan", "inf"])
def test_what_is_not_a_length_of_time_is_refused_with_how_to_write_one(text):
    with pytest.raises(UserError) as caught:
        parse_seconds(text)
    message = str(caught.value)
    assert message.startswith(repr(text))
    assert "is not a length of time" in message
    assert "90s or 5m" in message


@pytest.mark.parametrize(
    ("text", "shape"), [("3x32x32", (3, 32, 32)), ("784", (784,)), ("1,28,28", (1, 28, 28)), (" 2x3 ", (2, 3))]
)
def test_a_shape_is_sizes_joined_by_x_or_commas(text, shape):
    assert parse_shape(text) == shape


@pytest.mark.parametrize("text", ["", "x", "3x", "0x3", "-3x4", "3 x 4", "3.5", "3xx4"])
def test_what_is_not_a_shape_is_refused_with_how_to_write_one(text):
    with pytest.raises(UserError) as caught:
        parse_shape(text)
    assert str(caught.value) == f"{text!r} is not a shape; write sizes joined by x, channels first, such as 3x32x32"


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("1,2,4", [1, 2, 4]), ("1..4", [1, 2, 3, 4]), ("1, 4..6", [1, 4, 5, 6]), ("3..3", [3]), ("-1", [-1])],
)
def test_whole_numbers_come_as_a_list_or_a_range(text, numbers):
    assert parse_whole_numbers(text, "--workers") == numbers


@pytest.mark.parametrize(("text", "bad"), [("1,two", "two"), ("1.5", "1.5"), ("1,,2", ""), ("1...4", "1...4")])
def test_what_is_not_a_whole_number_is_refused_naming_the_option_and_the_part(text, bad):
    with pytest.raises(UserError) as caught:
        parse_whole_numbers(text, "--workers")
    message = str(caught.value)
    assert message.startswith(f"--workers {text!r} has {bad!r}, which is not a whole number")
    assert "1,2,4 or 1..8" in message


def test_a_range_that_runs_backwards_is_refused():
    with pytest.raises(UserError, match=r"8\.\.1"):
        parse_whole_numbers("8..1", "--workers")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 µs"),
        (0.000042, "42 µs"),
        (0.042, "42 ms"),
        (0.5, "500 ms"),
        (1.934, "1.93 s"),
        (99.96, "100 s"),
        (100, "1 min 40 s"),
        (119.6, "2 min 0 s"),
        (200, "3 min 20 s"),
        (6000, "1 h 40 min"),
    ],
)
def test_seconds_are_shown_in_the_unit_that_fits(seconds, text):
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("rate", "text"), [(12390.4, "12,390"), (1_234_567, "1,234,567"), (98.44, "98.4"), (0.5, "0.5"), (100, "100")]
)
def test_a_rate_has_thousands_separators_and_no_false_precision(rate, text):
    assert format_rate(rate) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (1_610_000, "1.61 MB"), (16_416_808, "16.4 MB"), (2e9, "2 GB")],
)
def test_bytes_are_decimal(count, text):
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    "text", [format_seconds(0.9996), format_seconds(0.0009996), format_bytes(999_999), format_bytes(5e12)]
)
def test_no_quantity_is_shown_with_an_exponent(text):
    assert "e+" not in text


@pytest.mark.parametrize(("share", "text"), [(0.974, "97 %"), (1, "100 %"), (0, "0 %"), (1.5, "150 %")])
def test_a_share_of_one_is_shown_as_a_whole_percentage(share, text):
    assert format_percent(share) == text


def test_a_predicted_number_has_three_digits():
    from paceline.units import format_about

    assert [format_about(value) for value in (254_898.0, 98.44, 1_234.0)] == ["255,000", "98.4", "1,230"]


@pytest.mark.parametrize(
    ("amount", "text"), [(0.0, "0.00"), (1234.5, "1,234.50"), (0.5, "0.50"), (0.0123, "0.012"), (0.000012, "0.000012")]
)
def test_money_for_energy_and_time_has_two_digits_that_matter(amount, text):
    assert format_money(amount) == text


@pytest.mark.parametrize(
    ("text", "count"), [("2GB", 2e9), ("500 MB", 5e8), ("2e9", 2e9), ("1.5TB/s", 1.5e12), ("7kB", 7e3), ("12B", 12.0)]
)
def test_bytes_are_read_with_and_without_a_unit(text, count):
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["fast", "-2GB", "2GiB", ""])
def test_what_is_no_number_of_bytes_is_refused_with_an_example(text):
    with pytest.raises(UserError, match="is not a number of bytes; write a number with kB, MB, GB or TB, such as 2GB"):
        parse_bytes(text)


def test_names_are_listed_as_in_a_sentence():
    assert [format_names(names) for names in (["left"], ["left", "right"], ["left", "middle", "right"])] == [
        "left", "left and right", "left, middle and right",
    ]  # fmt: skip
