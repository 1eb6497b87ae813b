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
        "Use torch-ddp with 2 workers: 1,818 samples/s, 1.80 times one worker (90 % of ideal).",
        "Why: it scales as if 11 % of the work did not speed up (run --breakdown tells where the time goes); the next "
        "strategy, tf-mirrored with 2 workers, reaches 50 % of it.",
        "How sure: 3 repeats within 2 %, which no other configuration reaches.",
    )


def test_one_worker_may_be_the_answer(make_record):
    records = [make_record(rate, workers=workers) for workers, rate in ((1, 1000.0), (2, 800.0))]
    what, why, sure = answer(summarise(records)).sentences
    assert what == (
        "Use fake with 1 worker: 1,000 samples/s; more workers do not pay here (at most 800 samples/s with several)."
    )
    assert why == "Why: it needs no communication."
    assert sure == "How sure: 1 repeat, too few to tell chance from effect (--repeats 3)."


def test_rivals_that_chance_could_explain_are_called_equal(make_record):
    records = [make_record(rate, repeat, workers=workers)
               for workers in (1, 2) for repeat, rate in enumerate((1000.0, 1010.0 + workers, 1020.0))]  # fmt: skip
    assert "which overlap with those of fake x1, so take them as equal" in answer(summarise(records)).sentences[2]


def test_of_several_settings_the_largest_is_told_and_wins_are_counted():
    rows = summarise(example_records.built_in("scaling"))
    found = answer(rows)
    assert found.setting.startswith("mnist-large on mnist-5k x4")
    assert found.sentences[0].startswith(
        "torch-ddp is the fastest in 12 of 12 settings; in the largest, mnist-large, mnist-5k x4 (first 512), "
        "global batch 512, use torch-ddp with "
    )


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
    assert "oversubscribed (more processes than cores), so it says little about a machine with enough cores" in said


def test_without_results_there_is_no_answer(make_record):
    assert answer(summarise([make_record(rate=None)])) is None


def test_several_workers_without_a_single_one_to_compare_with_are_told_without_a_gain(make_record):
    what, why, _ = answer(summarise([make_record(1000.0, workers=2)])).sentences
    assert what == "Use fake with 2 workers: 1,000 samples/s."
    assert why.startswith("Why: there is no single worker to compare with")
