"""One factor at a time, and from where on something pays."""

import pytest

from paceline.analysis.factors import BATCH, DATA, MODEL, groups_varying, short_count, with_enough_levels
from paceline.analysis.labels import shorten_titles
from paceline.analysis.rows import summarise
from paceline.analysis.thresholds import crossing, pays_from


def test_a_slice_holds_rows_that_differ_in_the_factor_and_workers_only(make_record):
    records = [make_record(dataset_copies=copies, workers=workers, seed=seed)
               for copies in (1, 4) for workers in (1, 2) for seed in (0, 1)]  # fmt: skip
    found = groups_varying(summarise(records), DATA)
    assert [len(own) for own in found.values()] == [4, 4]
    assert all(len({row.spec.seed for row in own}) == 1 for own in found.values())
    assert all(with_enough_levels(own, DATA) for own in found.values())
    assert not any(with_enough_levels(own, BATCH) for own in found.values())


def test_slices_with_the_same_title_are_numbered(make_record):
    records = [make_record(seed=seed) for seed in (0, 1)]
    assert [title.rpartition(" (")[2] for title in groups_varying(summarise(records), DATA)] == ["1 of 2)", "2 of 2)"]


def test_the_size_of_a_model_is_its_parameters(make_record):
    rows = summarise([make_record(workload=name) for name in ("mnist-small", "mnist-large")])
    assert {MODEL.level(row) for row in rows} == {402_442, 4_104_202}


@pytest.mark.parametrize(("count", "text"), [(402_442, "402 k"), (4_104_202, "4.1 M"), (14e6, "14 M"), (12, "12")])
def test_counts_are_short(count, text):
    assert short_count(count) == text


def test_strong_and_weak_scaling_are_never_in_one_slice(make_record):
    rows = summarise([make_record(), make_record(local_batch=100)])
    assert len(groups_varying(rows, BATCH)) == 2


def test_a_line_that_rises_through_one_pays_from_there():
    assert crossing([(100, 0.5), (200, 1.5)]) == 150
    assert pays_from([(100, 0.5), (200, 1.5)]) == "pay from about 150"


@pytest.mark.parametrize(
    ("points", "words"),
    [
        ([(100, 1.2), (200, 1.5)], "pay throughout"),
        ([(100, 0.2), (200, 0.9)], "do not pay up to here"),
        ([(100, 1.2), (200, 0.9)], "do not pay up to here"),
        ([], "not known"),
    ],
)
def test_where_nothing_crosses_words_say_so(points, words):
    assert pays_from(points) == words


def test_titles_lose_what_they_share():
    assert shorten_titles(["a on b · c, d 1 · e", "a on b · c, d 2 · e"]) == (["d 1", "d 2"], "a, b, c, e")
    assert shorten_titles(["a on b"]) == (["a on b"], "")
    assert shorten_titles(["a on b", "a on b · c"]) == (["nothing else set", "c"], "a, b")


def test_a_strategy_with_one_level_of_a_factor_tells_nothing_of_it(make_record):
    of_two = [make_record(global_batch=batch, workers=count) for batch in (64, 128) for count in (1, 2)]
    of_one = [make_record(strategy="torch-ddp", global_batch=64, workers=count) for count in (1, 2)]
    kept = with_enough_levels(summarise([*of_two, *of_one]), BATCH)
    assert {row.spec.strategy for row in kept} == {"fake"}
    assert len(kept) == 4
