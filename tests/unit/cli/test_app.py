"""Which commands there are, and former names that still work."""

import pytest
from typer.testing import CliRunner

from paceline.cli.app import ALIASES, COMMANDS, build_app


@pytest.mark.parametrize("alias", ALIASES)
def test_a_former_name_of_a_command_works_and_is_not_listed(alias: str) -> None:
    assert alias not in COMMANDS
    answer = CliRunner().invoke(build_app(alias), [alias, "--help"])
    assert answer.exit_code == 0
    assert alias not in CliRunner().invoke(build_app(), ["--help"]).output.split()
