"""The verdict that everything draws from: as strong as its runs are many and far apart, and no stronger."""

import pytest

from paceline.analysis.answer import answer, headline, verdict_lines
from paceline.analysis.rows import summarise
from paceline.analysis.statistics import rank_test
from paceline.analysis.verdicts.certainty import SURE_RUNS, Certainty, certainty
from paceline.analysis.verdicts.judge import Contender, judge


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ((1690.0, 1700.0), (1000.0, 1010.0), Certainty.UNKNOWN),
        ((1690.0,), (1000.0, 1010.0, 1020.0), Certainty.UNKNOWN),
        ((1200.0, 1210.0, 1220.0), (1000.0, 1010.0, 1020.0), Certainty.LIKELY),
        ((1200.0, 1210.0, 1220.0, 1230.0), (1000.0, 1010.0, 1020.0, 1030.0), Certainty.SURE),
        ((1000.0, 1300.0, 900.0), (1100.0, 950.0, 1050.0), Certainty.TIE),
        # Always faster, and by too little to matter.
        ((1001.0, 1002.0, 1003.0, 1004.0, 1005.0), (996.0, 997.0, 998.0, 999.0, 1000.0), Certainty.TIE),
        # Two of many runs overlap, which chance does rarely enough.
        ((130.0, 131.0, 132.0, 133.0, 110.0), (100.0, 101.0, 102.0, 103.0, 111.0), Certainty.SURE),
    ],
)
def test_certainty_follows_from_the_number_of_runs_and_how_far_apart_they_are(first, second, expected):
    assert certainty(first, second) is expected
    assert certainty(second, first) is expected


def test_sides_that_do_not_overlap_have_the_exact_chance_also_where_runs_are_equal():
    assert rank_test((2.0, 2.0, 2.0), (1.0, 1.0, 1.0)) == pytest.approx(0.1)
    assert rank_test((1.0, 1.5, 1.6, 1.7), (2.0, 2.0, 2.1, 3.0)) == pytest.approx(2 / 70)


def test_so_many_repeats_make_sure_what_fewer_make_likely():
    first, second = ([value + number for number in range(SURE_RUNS)] for value in (2000.0, 1000.0))
    assert certainty(first, second) is Certainty.SURE
    assert certainty(first[1:], second[1:]) is Certainty.LIKELY


def test_the_best_is_as_sure_as_the_weakest_of_its_comparisons():
    many = Contender("fast x2", 2, (200.0, 201.0, 202.0, 203.0))
    slow = Contender("slow x1", 1, (100.0, 101.0, 102.0, 103.0))
    once = Contender("once x1", 1, (50.0,))
    assert judge([slow, many]).certainty is Certainty.SURE
    assert judge([slow, many, once]).certainty is Certainty.UNKNOWN
    assert judge([many]).certainty is Certainty.UNKNOWN


def test_of_equals_the_one_with_the_fewest_workers_is_the_choice():
    two, four = (Contender(f"a x{workers}", workers, (100.0, 110.0, 105.0 + workers)) for workers in (2, 4))
    other = Contender("b x8", 8, (50.0, 51.0, 52.0))
    verdict = judge([other, two, four])
    assert (verdict.best.name, verdict.choice.name, verdict.next.name) == ("a x4", "a x2", "b x8")
    assert verdict.names == ["a x4", "x2"]
    assert verdict.ahead == pytest.approx(109 / 51 - 1)


def test_of_many_equals_some_are_named():
    assert judge([Contender(f"s{n} x1", 1, (100.0, 101.0, 102.0)) for n in range(6)]).names[-1] == "2 more"


def rates(make_record, *values, **fields):
    return [make_record(rate, repeat, **fields) for repeat, rate in enumerate(values)]


def test_a_tie_is_called_one_in_the_headline_of_the_report_too(make_record):
    rows = summarise(rates(make_record, 1000.0, 1040.0, 1020.0) + rates(make_record, 1010.0, 1050.0, 1000.0, workers=2))
    words = "A tie: fake x1 and x2, 1,020 to 1,010 samples/s; fake x1 needs the fewest workers"
    assert headline(rows) == f"{words}; 3 runs of each do not tell them apart."
    first, _, sure = answer(rows).sentences
    assert first == f"{words}."
    assert sure == "How sure: 3 runs of each do not tell them apart."


def test_what_overlaps_and_is_far_apart_is_open_and_no_tie(make_record):
    rows = summarise(rates(make_record, 1000.0, 1020.0, 990.0) + rates(make_record, 1300.0, 1320.0, 500.0, workers=2))
    assert headline(rows) == (
        "Open: fake x2 or x1, 1,300 to 1,000 samples/s; 3 runs of each differ too much to tell them apart."
    )
    more = [*rates(make_record, 100.0, global_batch=800), *rates(make_record, 90.0, global_batch=800, workers=2)]
    records = rates(make_record, 1000.0, 1020.0, 990.0) + rates(make_record, 1300.0, 1320.0, 500.0, workers=2) + more
    assert [line.how_sure for line in verdict_lines(summarise(records))] == ["open (3 runs)", "not sure (1 run)"]


def test_it_is_said_whose_runs_are_too_few(make_record):
    four = [1000.0, 1001.0, 1002.0, 1003.0]
    rows = summarise(rates(make_record, *four) + rates(make_record, 1700.0, 1710.0, workers=2))
    assert headline(rows).endswith("not sure, 2 runs of fake x2 cannot tell chance from effect.")


def test_two_runs_of_each_are_never_sure(make_record):
    said = headline(summarise(rates(make_record, 1000.0, 1001.0) + rates(make_record, 1690.0, 1700.0, workers=2)))
    assert said.startswith("Fastest here: fake with 2 workers, 1,695 samples/s, 1.69 times one worker")
    assert said.endswith("not sure, 2 runs of each cannot tell chance from effect.")


def test_four_runs_that_never_overlap_are_sure(make_record):
    slow, fast = (900.0, 910.0, 905.0, 902.0), (1800.0, 1810.0, 1790.0, 1805.0)
    said = headline(summarise(rates(make_record, *slow) + rates(make_record, *fast, workers=2)))
    assert said.endswith("sure, 100 % ahead of fake x1 in 4 runs.")


def test_several_settings_are_one_line_each_with_what_is_best_by_how_much_and_how_sure(make_record):
    records = [
        record
        for batch, gain in ((100, 1.0), (200, 1.5), (400, 3.0))
        for workers in (1, 2)
        for record in rates(
            make_record,
            *(rate * (gain if workers > 1 else 1) for rate in (1000.0, 1020.0, 1040.0)),
            workers=workers,
            global_batch=batch,
        )
    ]
    rows = summarise([*records, make_record(7.0, global_batch=800)])
    lines = verdict_lines(rows)
    assert [line.setting for line in lines] == [f"global batch {batch}" for batch in (100, 200, 400, 800)]
    assert [line.best for line in lines] == ["fake x1 = x2", "fake x2", "fake x2", "fake x1"]
    assert [line.ahead for line in lines] == ["–", "50 % over fake x1", "200 % over fake x1", "–"]
    assert [line.how_sure for line in lines] == [
        "tie (3 runs)", "likely (3 runs)", "likely (3 runs)", "nothing else (1 run)",
    ]  # fmt: skip
    assert answer(rows).sentences == ("fake alone was measured, in 4 settings; 1 of 4 has too few runs to be sure.",)


def test_wins_of_a_strategy_are_counted_over_settings(make_record):
    records = []
    for batch, ddp in ((100, 2000.0), (200, 1500.0), (400, 1005.0)):
        for strategy, rate in (("torch-ddp", ddp), ("tf-mirrored", 1000.0)):
            runs = (rate, rate * 1.02, rate * 1.04)
            records += rates(make_record, *runs, strategy=strategy, global_batch=batch)
    words = "torch-ddp is the fastest in 2 of 3 settings, likely; 1 of 3 is a tie."
    assert answer(summarise(records)).sentences == (words,)
    for rate, strategy in ((3000.0, "torch-ddp"), (1.0, "tf-mirrored")):
        records.append(make_record(rate, strategy=strategy, global_batch=800))
    sure = "(likely in 2, with too few runs to be sure in 1)"
    words = f"torch-ddp is the fastest in 3 of 4 settings {sure}; 1 of 4 is a tie."
    assert answer(summarise(records)).sentences == (words,)


def test_a_strategy_that_was_measured_alone_has_won_nothing(make_record):
    records = []
    for strategy, rate in (("torch-ddp", 2000.0), ("tf-mirrored", 1000.0)):
        records += rates(make_record, rate, rate + 1, rate + 2, strategy=strategy, global_batch=100)
    for workers in (1, 2):
        records.append(make_record(1000.0 * workers, strategy="torch-ddp", workers=workers, global_batch=200))
    records.append(make_record(9.0, strategy="fake", global_batch=400))
    words = "torch-ddp is the fastest in 1 of 3 settings, likely; 2 of 3 have one strategy alone."
    assert answer(summarise(records)).sentences == (words,)


def test_one_setting_has_no_table_of_settings(make_record):
    assert verdict_lines(summarise([make_record()])) == ()
    assert verdict_lines([]) == ()


def test_each_link_is_a_line_that_one_worker_is_compared_over(make_record):
    records = rates(make_record, 1000.0, 1001.0, 1002.0)
    for link, rate in (("10mbit", 200.0), ("1gbit", 1500.0)):
        records += rates(make_record, rate, rate + 1, rate + 2, workers=2, link=link)
    lines = verdict_lines(summarise(records))
    assert [(line.setting, line.best) for line in lines] == [("link 10mbit", "fake x1"), ("link 1gbit", "fake x2")]


def test_steps_are_not_called_samples(make_record):
    said = headline(summarise([make_record(5.0, findings=("steps_counted",))]))
    assert said == "Measured here: fake with 1 worker, 5 steps/s; 1 run, and nothing to compare with."
