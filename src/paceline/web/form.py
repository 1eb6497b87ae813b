"""Fields of a form ─► arguments of the command that does the same in a terminal."""

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
    # The value without the option.
    default: str = ""


def run_arguments(fields: Fields, options: Sequence[Option], db: Path | None) -> list[str]:
    """The arguments of `paceline run`, such as `run quick --workers=1,2`."""
    study = next((value.strip() for value in fields.get("study", ()) if value.strip()), "")
    if study.startswith("-"):
        raise UserError(f"{study!r} is not a study; give a built-in name or the path of a TOML file")
    return ["run", *([study] if study else []), *option_arguments(fields, options, db)]


def option_arguments(fields: Fields, options: Sequence[Option], db: Path | None) -> list[str]:
    """The filled-in fields as options; a value that looks like an option remains a value."""
    arguments: list[str] = []
    for option in options:
        values = [value.strip() for value in fields.get(option.name, ()) if value.strip()]
        if option.switch:
            arguments += [option.flag] if values else []
        elif option.several:
            # One NAME=VALUE on each line.
            lines = [line.strip() for text in values for line in text.splitlines()]
            arguments += [f"{option.flag}={line}" for line in lines if line]
        elif values:
            arguments.append(f"{option.flag}={','.join(values)}")
    return [*arguments, *([f"--db={db}"] if db is not None else [])]


def command_line(arguments: Sequence[str]) -> str:
    """The command as it would be typed."""
    return shlex.join(["paceline", *arguments])
