"""Results as the pages see them: filtered, and read again when there is something new."""

from collections.abc import Callable
from pathlib import Path

from paceline.record import Record
from paceline.store import Store
from paceline.web.results_cache import Filters, ResultsCache
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
    filter_values = ResultsCache(db).snapshot().filter_values()
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
