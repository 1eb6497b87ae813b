"""Results as the pages see them: filtered, and read again when there is something new."""

from collections.abc import Callable
from pathlib import Path

from paceline.record import Record
from paceline.store import Store
from paceline.web.pages.results import NO_TAG, _place
from paceline.web.results_cache import MOST_QUERIES, Filters, ResultsCache
from unit.web.conftest import HOSTILE


def test_without_filters_everything_is_taken(db: Path) -> None:
    assert len(ResultsCache(db).snapshot().select(Filters())) == 7


def test_filters_of_one_kind_widen_and_of_several_kinds_narrow(db: Path) -> None:
    snapshot = ResultsCache(db).snapshot()
    both = Filters.parse([("workers", "1"), ("workers", "2")])
    assert len(snapshot.select(both)) == 6
    assert len(snapshot.select(Filters.parse([("workers", "2"), ("study", "trial")]))) == 3
    assert snapshot.select(Filters.parse([("workers", "2"), ("study", HOSTILE)])) == []
    assert snapshot.select(Filters.parse([("study", "of another file")])) == []


def test_a_choice_survives_as_an_address_and_what_is_no_filter_does_not(db: Path) -> None:
    filters = Filters.parse([("strategy", "a&b"), ("page", "2"), ("workers", "1"), ("workers", "1")])
    assert filters.query == "?strategy=a%26b&workers=1"


def test_values_to_choose_from_are_those_that_there_are_workers_by_number(db: Path) -> None:
    filter_values = ResultsCache(db).snapshot().filter_values
    assert filter_values["workers"] == ["1", "2", "3"]
    assert filter_values["study"] == [HOSTILE, "trial"]


def test_a_new_record_is_seen_at_once(db: Path, measured: Callable[..., Record]) -> None:
    results = ResultsCache(db)
    before = results.snapshot()
    assert results.snapshot() is before
    with Store.open(db) as store:
        store.add(measured(500.0, workers=4))
    assert len(results.snapshot().records) == len(before.records) + 1
    assert results.version() == results.snapshot().version


def test_a_file_that_is_not_there_yet_is_empty(tmp_path: Path) -> None:
    results = ResultsCache(tmp_path / "later.db")
    assert results.snapshot().records == ()
    assert not (tmp_path / "later.db").exists()


def test_a_part_of_a_page_is_made_anew_only_where_something_of_it_changed(
    db: Path, measured: Callable[..., Record]
) -> None:
    results, made = ResultsCache(db), []

    def ask(study: str) -> None:
        snapshot, filters = results.snapshot(), Filters({"study": (study,)})
        snapshot.part(study, [*snapshot.select(filters), *snapshot.rows(filters)], lambda: made.append(study))

    for study in ("trial", HOSTILE, "trial"):
        ask(study)
    with Store.open(db) as store:
        record = measured(500.0, workers=4)
        store.add(record)
        store.add_to_study("trial", {record.key})
    for study in ("trial", HOSTILE):
        ask(study)
    assert made == ["trial", HOSTILE, "trial"]


def test_rows_of_all_studies_are_kept_however_many_there_are(db: Path, measured: Callable[..., Record]) -> None:
    record = measured(500.0, workers=4)
    with Store.open(db) as store:
        store.add(record)
        for number in range(2 * MOST_QUERIES):
            store.add_to_study(f"study {number}", {record.key})
    snapshot = ResultsCache(db).snapshot()
    choices = [Filters({"study": (name,)}) for name in snapshot.members]
    first = [snapshot.rows(filters) for filters in choices]
    assert all(snapshot.rows(filters) is rows for filters, rows in zip(choices, first, strict=True))


def test_what_is_wrong_with_a_file_is_told_to_who_asks_and_not_before(tmp_path: Path) -> None:
    path = tmp_path / "no.db"
    path.write_bytes(b"no database" * 100)
    ResultsCache(path).prepare()


def test_studies_with_numbers_of_any_length_are_in_order(db: Path) -> None:
    titles = ["run 10", "run 9", "run " + "9" * 5000, "run", NO_TAG, "run 1" + "0" * 4999]
    assert sorted(titles, key=_place) == ["run", "run 9", "run 10", titles[5], titles[2], NO_TAG]
