"""Two sides compared: a winner only where chance cannot explain it."""

import pytest

from paceline.analysis.comparison import compare
from paceline.analysis.selection import Selector
from paceline.errors import SpecError

SINGLE, DDP = Selector.parse("torch-single"), Selector.parse("torch-ddp")


def runs(make_record, strategy, rates, **fields):
    return [make_record(rate, repeat, strategy=strategy, **fields) for repeat, rate in enumerate(rates)]


def test_a_clear_winner_is_named_with_ratio_and_effect(make_record):
    records = runs(make_record, "torch-ddp", (1500, 1520, 1480, 1510)) + runs(
        make_record, "torch-single", (1000, 1010, 990, 1005)
    )
    by_wall = compare(records, DDP, SINGLE)[0]
    assert by_wall.ratio == pytest.approx(1505 / 1002.5)
    assert by_wall.p_value == pytest.approx(2 / 70)
    assert by_wall.verdict == "torch-ddp is 1.50 times torch-single (p = 0.029)"


def test_sides_that_overlap_have_no_clear_difference(make_record):
    records = runs(make_record, "torch-ddp", (1000, 1200, 900)) + runs(make_record, "torch-single", (1100, 950, 1050))
    found = compare(records, DDP, SINGLE)[0]
    assert found.interval is not None
    assert found.interval.spans(1.0)
    assert found.verdict == "no clear difference"


def test_one_run_of_a_side_is_no_basis_for_a_verdict(make_record):
    records = runs(make_record, "torch-ddp", (2000,)) + runs(make_record, "torch-single", (1000, 1001, 1002))
    assert "repeat at least 3 times" in compare(records, DDP, SINGLE)[0].verdict


def test_two_runs_of_each_name_no_winner_however_far_apart(make_record):
    records = runs(make_record, "torch-ddp", (1690, 1700)) + runs(make_record, "torch-single", (1000, 1010))
    found = compare(records, DDP, SINGLE)[0]
    assert found.p_value == pytest.approx(1 / 3)
    assert found.verdict == "too few runs to tell (2 runs and 2 runs); repeat at least 3 times"


def test_three_runs_of_each_make_a_difference_likely(make_record):
    records = runs(make_record, "torch-ddp", (1000, 1010, 990)) + runs(make_record, "torch-single", (1500, 1520, 1510))
    assert compare(records, DDP, SINGLE)[0].verdict == (
        "torch-single is 1.51 times torch-ddp, likely (p = 0.1); 4 runs of each would make it sure"
    )


def test_only_like_settings_are_compared(make_record):
    records = runs(make_record, "torch-ddp", (1500, 1510), workers=2) + runs(make_record, "torch-single", (1000, 1001))
    assert compare(records, DDP, SINGLE) == []
    named = compare(records, Selector.parse("torch-ddp:workers=2"), Selector.parse("torch-single:workers=1"))
    assert [one.measure for one in named] == ["samples/s", "samples per CPU second"]


def test_instrumented_and_failed_runs_do_not_count(make_record):
    records = runs(make_record, "torch-ddp", (1000, 1001)) + runs(make_record, "torch-single", (1000, 1001))
    records += runs(make_record, "torch-ddp", (1, None), instrumented=True)
    assert compare(records, DDP, SINGLE)[0].first_values == (pytest.approx(1000), pytest.approx(1001))


def test_a_selector_takes_runs_by_their_fields_and_knobs(make_record):
    spec = make_record(strategy="torch-ddp", workers=2, knobs={"bucket_mb": 1.0}).spec
    for text in ("torch-ddp", "torch-*", "torch-ddp:workers=2", "torch-ddp:bucket_mb=1.0,workload=mnist-small"):
        assert Selector.parse(text).matches(spec), text
    for text in ("torch-single", "torch-ddp:workers=1", "torch-ddp:static_graph=true"):
        assert not Selector.parse(text).matches(spec), text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("torch-dpd", "did you mean"),
        ("torch-ddp:worker=2", "did you mean 'workers'"),
        ("torch-ddp:workers", "is not FIELD=VALUE"),
    ],
)
def test_a_selector_that_cannot_be_meant_is_refused(text, words):
    with pytest.raises(SpecError, match=words):
        Selector.parse(text)
