"""Tags and notes beside the records, which stay as they are."""

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.errors import StoreError, UserError
from paceline.record import Record
from paceline.store import Store
from paceline.web.annotations import (
    LONGEST_NOTE,
    LONGEST_TAG,
    MOST_TAGS,
    NOTHING_SAID,
    Annotation,
    add_tag,
    read_annotations,
    remove_tag,
    set_note,
)  # fmt: skip


@pytest.fixture
def results(path: Path, make_record: Callable[..., Record]) -> Path:
    with Store.open(path) as store:
        store.add(make_record())
    return path


def test_a_file_in_which_nobody_said_anything_has_no_annotations(results: Path) -> None:
    assert read_annotations(results) == {}


def test_tags_and_notes_are_kept_and_taken_off_again(results: Path) -> None:
    add_tag(results, ["a", "b"], "  good   enough ")
    add_tag(results, ["a"], "again")
    add_tag(results, ["a"], "again")
    set_note(results, "a", "first\r\nsecond\n")
    assert read_annotations(results) == {
        "a": Annotation(("again", "good enough"), "first\nsecond"), "b": Annotation(("good enough",)),
    }  # fmt: skip
    remove_tag(results, ["a", "b"], "good enough")
    set_note(results, "a", "  ")
    assert read_annotations(results) == {"a": Annotation(("again",))}
    assert NOTHING_SAID.tags == ()


def test_records_and_the_number_of_the_schema_stay_as_they_were(results: Path) -> None:
    def dump() -> list[str]:
        with sqlite3.connect(results) as connection:
            version = connection.execute("PRAGMA user_version").fetchone()
            return [
                str(version),
                *(line for line in connection.iterdump() if "tags" not in line and "notes" not in line),
            ]

    before = dump()
    add_tag(results, ["a"], "good")
    set_note(results, "a", "text")
    assert dump() == before
    with Store.open_existing(results) as store:
        assert len(store.records()) == 1


@pytest.mark.parametrize(
    ("tag", "words"),
    [("  ", "a tag has no letters; write a word, such as good"),
     ("x" * (LONGEST_TAG + 1), "cannot be a tag; write at most 40"),
     ("a\x01b", r"'a\\\\x01b' cannot be a tag")],
)  # fmt: skip
def test_what_cannot_be_a_tag_is_refused_in_words(results: Path, tag: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        add_tag(results, ["a"], tag)
    assert read_annotations(results) == {}


def test_too_many_tags_and_too_long_a_note_are_refused_in_words(results: Path) -> None:
    for number in range(MOST_TAGS):
        add_tag(results, ["a"], str(number))
    with pytest.raises(UserError, match=f"has {MOST_TAGS} tags already; take one off before 'more' is added"):
        add_tag(results, ["a"], "more")
    assert len(read_annotations(results)["a"].tags) == MOST_TAGS
    with pytest.raises(UserError, match="the note has 10,001 characters; write at most 10,000"):
        set_note(results, "a", "x" * (LONGEST_NOTE + 1))


def test_a_file_that_is_no_results_file_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "other.db").write_text("something else entirely")
    with pytest.raises(StoreError, match="is not a sound results file"):
        add_tag(tmp_path / "other.db", ["a"], "good")
    assert (tmp_path / "other.db").read_text() == "something else entirely"
    with pytest.raises(StoreError, match="there is no results file"):
        set_note(tmp_path / "none.db", "a", "text")
    assert not (tmp_path / "none.db").exists()
