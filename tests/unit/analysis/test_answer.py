"""What is best here and why, in three sentences."""

from paceline.analysis.answer import answer
from paceline.analysis.rows import summarise
from unit.figures import example_records


def test_three_sentences_say_what_is_best_why_and_how_sure(make_record):
    rates = {("torch-ddp", 1): 1000.0, ("torch-ddp", 2): 1800.0, ("tf-mirrored", 2): 900.0}
    records = [
        make_record(rate * (1 + 0.01 * repeat), repeat, strategy=strategy, workers=workers)
        for (strategy, workers), rate in rates.items() for repeat in range(3)
    ]  # fmt: skip
    found = answer(summarise(records))
    assert found.sentences == (
        "Fastest here: torch-ddp with 2 workers, 1,818 samples/s, 1.80 times one worker (90 % of ideal).",
        "Why: it scales as if 11 % of the work did not speed up (run --breakdown tells where the time goes); the next "
        "strategy, tf-mirrored with 2 workers, reaches 50 % of it.",
        "How sure: likely, 80 % ahead of torch-ddp x1 in each of 3 runs (4 would make it sure).",
    )


def test_one_worker_may_be_the_answer(make_record):
    records = [make_record(rate, workers=workers) for workers, rate in ((1, 1000.0), (2, 800.0))]
    what, why, sure = answer(summarise(records)).sentences
    assert what == (
        "Fastest here: fake with 1 worker, 1,000 samples/s; more workers were no faster (at most 800 samples/s)."
    )
    assert why == "Why: it needs no communication."
    assert sure == "How sure: not sure, 1 run of each cannot tell chance from effect."


def test_of_several_settings_wins_are_counted_and_each_has_a_line():
    rows = summarise(example_records.built_in("scaling"))
    found = answer(rows)
    assert found.sentences == ("torch-ddp is the fastest in 12 of 12 settings, likely.",)
    assert len(found.lines) == 12
    assert found.lines[-1].setting == "mnist-large, mnist-5k x4 (first 512), global batch 512"
    assert found.lines[-1].best == "torch-ddp x2 = x4"


def test_where_the_time_goes_is_the_reason_if_it_is_known():
    said = answer(summarise(example_records.built_in("quick", instrumented=True))).sentences
    assert said[1].startswith(
        "Why: 86 % of a step of 21.2 ms is computing, 10 % is exposed communication, 2 % is waiting"
    )


def test_an_oversubscribed_machine_is_told(make_record):
    records = [
        make_record(100.0 * workers, workers=workers, findings=("oversubscribed",) * (workers > 1))
        for workers in (1, 2)
    ]
    said = answer(summarise(records)).sentences[2]
    assert said.endswith("tell chance from effect, but oversubscribed.")


def test_without_results_there_is_no_answer(make_record):
    assert answer(summarise([make_record(rate=None)])) is None


def test_several_workers_without_a_single_one_to_compare_with_are_told_without_a_gain(make_record):
    what, why, _ = answer(summarise([make_record(1000.0, workers=2)])).sentences
    assert what == "Measured here: fake with 2 workers, 1,000 samples/s."
    assert why.startswith("Why: there is no single worker to compare with")
