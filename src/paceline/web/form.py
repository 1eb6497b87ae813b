"""Forms ─► the words of the command that does it, which is also shown for the terminal."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import UserError

Fields = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Option:
    """One option of a command, as its help describes it."""

    name: str
    flag: str
    about: str
    metavar: str = ""
    # Whether it is switched on rather than given a value, and whether it may be given several times.
    switch: bool = False
    several: bool = False
    # What holds where nothing is given.
    default: str = ""


def run_words(fields: Fields, options: Sequence[Option], db: Path | None) -> list[str]:
    """`run quick --workers=1,2`."""
    study = next((value.strip() for value in fields.get("study", ()) if value.strip()), "")
    if study.startswith("-"):
        raise UserError(f"{study!r} is not a study; give a built-in name or the path of a TOML file")
    return ["run", *([study] if study else []), *option_words(fields, options, db)]


def option_words(fields: Fields, options: Sequence[Option], db: Path | None) -> list[str]:
    """What was filled in, as options; values stay inside their option, whatever they look like."""
    words: list[str] = []
    for option in options:
        given = [value.strip() for value in fields.get(option.name, ()) if value.strip()]
        if option.switch:
            words += [option.flag] if given else []
        elif option.several:
            # One NAME=VALUE on each line.
            words += [f"{option.flag}={line.strip()}" for text in given for line in text.splitlines() if line.strip()]
        elif given:
            words.append(f"{option.flag}={','.join(given)}")
    return [*words, *([f"--db={db}"] if db is not None else [])]


def command(words: Sequence[str]) -> str:
    """As it would be typed."""
    return shlex.join(["paceline", *words])
