"""Results files of several machines in one: equal records once, nothing lost or hidden, sources untouched."""

from pathlib import Path

import pytest

from paceline.cli.merge import merge
from paceline.errors import StoreError
from paceline.record import Record, Status
from paceline.store import Store
from paceline.store.merging import merge_files


@pytest.fixture
def write(tmp_path: Path, make_record):
    """A results file with these runs of one configuration, made on a machine of that name."""

    def make(name: str, *runs: dict) -> Path:
        path = tmp_path / f"{name}.db"
        with Store.open(path) as store:
            for number, fields in enumerate(runs):
                moment = f"2024-05-01T12:00:{number:02d}.000+00:00"
                record = make_record(
                    **{"environment": {"host": name}, "started_at": moment, "step_seconds": {0: (0.5, 0.25)}, **fields}
                )
                store.add(record)
                store.add_to_study(record.study, [record.key])
        return path

    return make


def everything(path: Path) -> list[Record]:
    with Store.open_existing(path) as store:
        return list(store.everything())


def shown(path: Path) -> list[tuple[str, int]]:
    with Store.open_existing(path) as store:
        return [(record.environment["host"], record.repeat) for record in store.records()]


def test_runs_of_two_machines_are_further_repeats_and_none_hides_another(write, tmp_path: Path) -> None:
    first, second = (write(name, {"repeat": 0}, {"repeat": 1}) for name in ("a", "b"))
    out = tmp_path / "all.db"
    merged = merge_files([first, second], out)
    assert [(file.added, file.known, file.machines) for file in merged] == [(2, 0, ("a",)), (2, 0, ("b",))]
    assert shown(out) == [("a", 0), ("a", 1), ("b", 2), ("b", 3)]
    assert everything(out)[0].step_seconds == {0: (0.5, 0.25)}
    with Store.open_existing(out) as store:
        assert store.studies() == ["trial"]


def test_what_is_merged_again_is_there_once(write, tmp_path: Path) -> None:
    first, second = (write(name, {"repeat": 0}) for name in ("a", "b"))
    out = tmp_path / "all.db"
    merge_files([first, second], out)
    again = merge_files([first, second, first], out)
    assert [(file.added, file.known) for file in again] == [(0, 1)] * 3
    assert len(everything(out)) == 2


def test_new_runs_of_a_file_that_was_merged_before_join_their_repeats(write, tmp_path: Path) -> None:
    first = write("a", {"repeat": 0})
    second = write("b", {"repeat": 0})
    out = tmp_path / "all.db"
    merge_files([first, second], out)
    write("b", {"repeat": 1, "started_at": "2024-05-02T12:00:00.000+00:00"})
    (merged,) = merge_files([second], out)
    assert (merged.added, merged.known) == (1, 1)
    assert shown(out) == [("a", 0), ("b", 1), ("b", 2)]


def test_a_run_that_was_repeated_replaces_its_former_as_before(write, tmp_path: Path) -> None:
    source = write("b", {"repeat": 0, "status": Status.FAILED, "reason": "first"}, {"repeat": 0})
    out = tmp_path / "all.db"
    merge_files([write("a", {"repeat": 0}), source], out)
    assert len(everything(out)) == 3
    assert shown(out) == [("a", 0), ("b", 1)]


def test_sources_are_only_read(write, tmp_path: Path) -> None:
    first, second = (write(name, {"repeat": 0}) for name in ("a", "b"))
    before = [everything(path) for path in (first, second)]
    merge_files([first, second], tmp_path / "all.db")
    assert [everything(path) for path in (first, second)] == before


def test_what_is_no_results_file_is_refused_before_anything_is_written(write, tmp_path: Path) -> None:
    good, out = write("a", {"repeat": 0}), tmp_path / "all.db"
    other = tmp_path / "other.db"
    other.write_text("notes of another kind")
    for wrong, words in ((other, "is not a sound results file"), (tmp_path / "none.db", "there is no results file")):
        with pytest.raises(StoreError, match=words):
            merge_files([good, wrong], out)
    assert not out.exists()


def test_a_file_is_not_merged_into_itself(write) -> None:
    path = write("a", {"repeat": 0})
    with pytest.raises(StoreError, match="is both merged and written; name the others alone"):
        merge_files([path], path)


def test_the_command_says_what_came_from_where(write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [write(name, {"repeat": 0}) for name in ("a", "b")]
    merge(files, tmp_path / "all.db")
    merge(files[:1], tmp_path / "all.db")
    said = capsys.readouterr().out
    assert "a.db: 1 record added from a" in said
    assert "a.db: 0 records added, 1 there already from a" in said
