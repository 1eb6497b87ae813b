"""What is said of runs over links: what to use over each, from where on it pays, and what a run is compared with."""

from paceline.analysis.answer import answer, headline
from paceline.analysis.labels import describe_unmeasured, group_by_setting
from paceline.analysis.rows import summarise
from paceline.analysis.thresholds import thresholds
from paceline.record import Status

RATES = {"10mbit": 200.0, "100mbit": 900.0, "1gbit": 1500.0}


def sweep(make_record, **fields):
    alone = make_record(1000.0, workers=1)
    return [alone, *(make_record(rate, workers=2, link=link, **fields) for link, rate in RATES.items())]


def test_runs_over_links_are_compared_with_one_worker_that_crosses_none(make_record):
    rows = summarise([*sweep(make_record), make_record(5000.0, workers=1, link="1gbit", knobs={"step_ms": 1.0})])
    speedups = {row.spec.link.text: row.speedup for row in rows if row.spec.workers == 2}
    assert speedups == {"10mbit": 0.2, "100mbit": 0.9, "1gbit": 1.5}


def test_rows_of_a_strategy_stand_from_the_slowest_link_to_the_fastest(make_record):
    rows = summarise(reversed(sweep(make_record)))
    assert [row.spec.link.text if row.spec.link else None for row in rows] == [None, *RATES]


def test_the_headline_says_what_to_use_over_which_link_and_from_where_on_it_pays(make_record):
    assert headline(summarise(sweep(make_record))) == (
        "Over 10mbit to 100mbit use one worker (1,000 samples/s); over 1gbit use fake x2 (1,500 samples/s). "
        "More than one worker pays with fake x2 from 1gbit on."
    )


def test_the_answer_of_a_report_is_about_links_too(make_record):
    told = answer(summarise(sweep(make_record)))
    assert told is not None
    assert told.sentences == (
        "Over 10mbit to 100mbit use one worker (1,000 samples/s); over 1gbit use fake x2 (1,500 samples/s).",
        "More than one worker pays with fake x2 from 1gbit on.",
        "How sure: 1 run of each, too few to tell chance from effect.",
    )


def test_a_strategy_may_pay_over_all_of_them_or_none(make_record):
    alone = make_record(1000.0, workers=1)
    fast = [make_record(1200.0, workers=2, link=link) for link in RATES]
    slow = [make_record(500.0, workers=4, link=link) for link in RATES]
    assert headline(summarise([alone, *fast, *slow])).endswith(
        "More than one worker pays with fake x2 over all of them, fake x4 over none of them."
    )


def test_a_link_is_a_threshold(make_record):
    (sentence,) = thresholds(summarise(sweep(make_record)))
    assert sentence == (
        "fake (2 workers) pays from link 1gbit on: link 10mbit 0.20x, link 100mbit 0.90x, link 1gbit 1.50x the speed "
        "of one worker."
    )


def test_settings_say_their_link_unless_a_column_does(make_record):
    rows = summarise(sweep(make_record))
    titles = list(group_by_setting(rows))
    assert [title.rpartition(" · ")[2] for title in titles] == ["2 epochs", *(f"link {link}" for link in RATES)]
    assert len(group_by_setting(rows, without={"link"})) == 1


def test_what_cannot_run_at_all_is_said_once_for_all_links(make_record):
    skipped = [make_record(None, workers=2, link=link, status=Status.SKIPPED, reason="not here") for link in RATES]
    assert describe_unmeasured(summarise([*skipped])) == [("fake x2", "skipped", "not here")]
