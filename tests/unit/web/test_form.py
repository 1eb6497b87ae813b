"""Fields of the form ─► the words of the command."""

from pathlib import Path

import pytest

from paceline.cli.run import run
from paceline.cli.serve import options_of
from paceline.errors import UserError
from paceline.web.form import Option, command_line, run_arguments
from unit.web.conftest import OPTIONS


def test_only_what_was_filled_in_becomes_an_option() -> None:
    fields = {
        "study": ["quick"],
        "workers": ["1,2"],
        "strategy": ["fake", "torch-ddp"],
        "workload": [""],
        "knob": [" "],
    }
    assert run_arguments(fields, OPTIONS, None) == ["run", "quick", "--strategy=fake,torch-ddp", "--workers=1,2"]


def test_options_that_come_several_times_are_given_line_by_line() -> None:
    arguments = run_arguments({"knob": ["step_ms=1,2\n\n jitter=0.1 "], "breakdown": ["on"]}, OPTIONS, Path("my.db"))
    assert arguments == ["run", "--knob=step_ms=1,2", "--knob=jitter=0.1", "--breakdown", "--db=my.db"]


def test_a_value_cannot_become_an_option_of_its_own() -> None:
    assert run_arguments({"workers": ["--fresh"]}, OPTIONS, None) == ["run", "--workers=--fresh"]
    with pytest.raises(UserError, match="'--fresh' is not a study; give a built-in name or the path of a TOML file"):
        run_arguments({"study": ["--fresh"]}, OPTIONS, None)


def test_what_no_option_is_named_after_is_left_out() -> None:
    assert run_arguments({"secret": ["x"], "other": ["y"]}, OPTIONS, None) == ["run"]


def test_the_command_is_quoted_for_the_terminal() -> None:
    assert command_line(["run", "--model=my file.py:build"]) == "paceline run '--model=my file.py:build'"


def test_the_form_knows_every_option_of_the_command_with_its_kind() -> None:
    known = {option.name: option for option in options_of(run)}
    assert known["workers"] == Option("workers", "--workers", "Worker counts, such as 1,2 or 1..4.", "N,...")
    assert known["knob"].several and not known["knob"].switch
    assert known["breakdown"].switch and known["watts"].flag == "--watts-per-core"
    assert "study" not in known
