"""Paths, TOML files and texts of users: refused in words, or made fit to print."""

import tomllib
from pathlib import Path

import pytest

from paceline.errors import UserError
from paceline.fleet import load_fleet, parse_fleet
from paceline.predict.logged import read_log
from paceline.source_files import ModelFile, ScriptFile
from paceline.study import Study
from paceline.systems.files import load_hardware
from paceline.user_input.paths import MOST_BYTES, is_file, user_path
from paceline.user_input.printable import finalize, printable, spreadsheet_cell
from paceline.user_input.toml import MOST_LEVELS, parse_toml


def test_a_home_folder_that_there_is_not_is_named() -> None:
    with pytest.raises(UserError, match="there is no home folder ~nouser here; write the path in full"):
        user_path("~nouser/x.py", "--model")


def test_a_name_that_is_no_text_is_refused() -> None:
    with pytest.raises(UserError, match="is not UTF-8; rename it"):
        user_path("m\udcff.py", "--model")


def test_no_file_has_a_name_that_is_too_long() -> None:
    assert not is_file(Path("x" * 300))


READERS = {
    "study": lambda path: Study.load(str(path)),
    "system": lambda path: load_hardware(str(path)),
    "fleet": load_fleet,
    "hosts": lambda path: parse_fleet(f"ssh:@{path}"),
    "log": read_log,
    "model": lambda path: ModelFile.from_text(str(path)),
    "script": lambda path: ScriptFile.from_text(str(path)),
}


@pytest.mark.parametrize("what", READERS)
def test_a_file_that_nobody_wrote_is_not_read_into_memory(what: str, tmp_path: Path) -> None:
    path = tmp_path / "huge.toml"
    with path.open("wb") as file:
        file.truncate(MOST_BYTES + 1)  # it takes no space on the disk
    with pytest.raises(UserError, match=r"huge.toml cannot be read: .*it has more than 16 MiB, as no such file has"):
        READERS[what](path)


def test_a_script_with_an_expression_that_is_too_long_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("x = " + "+".join("1" * 100_000))
    with pytest.raises(UserError, match=r"train.py has an expression that is too long for Python to read"):
        ScriptFile.from_text(str(path))


@pytest.mark.parametrize(
    "text", ["a = " + "[" * 5000, "a = " + "[" * 5000 + "]" * 5000, "[a" + ".a" * MOST_LEVELS + "]\nb = 1",
             "a = " + "9" * 5000],
)  # fmt: skip
def test_values_that_nobody_wrote_are_no_toml(text: str) -> None:
    with pytest.raises(tomllib.TOMLDecodeError):
        parse_toml(text)


def test_values_of_usual_depth_are_read() -> None:
    assert parse_toml("[a.b.c]\nd = [[1, 2], [3]]") == {"a": {"b": {"c": {"d": [[1, 2], [3]]}}}}


@pytest.mark.parametrize("code", [*range(0x20), 0x7F, *range(0x80, 0xA0), 0x2028, 0x202E, 0x2066, 0xD800, 0xFFFE])
def test_no_character_that_anything_obeys_is_printed(code: int) -> None:
    text = printable(f"a{chr(code)}b")
    assert chr(code) not in text and text.startswith("a\\") and text.endswith("b")


def test_texts_in_any_language_are_printed_as_they_are() -> None:
    assert printable("größer 模型 😀 µs") == "größer 模型 😀 µs"


def test_a_template_keeps_lines_and_numbers() -> None:
    assert finalize("a\nb\x1b") == "a\nb\\x1b"
    assert finalize(3) == 3


@pytest.mark.parametrize("text", ["=cmd()", "+1", "-1", "@x", "\tx"])
def test_a_spreadsheet_computes_no_text(text: str) -> None:
    assert spreadsheet_cell(text) == f"'{text}"
    assert spreadsheet_cell(-1.5) == -1.5
