"""What `paceline join` refuses before any process is waited for."""

import pytest
from typer.testing import CliRunner

from paceline.cli.app import build_app
from paceline.errors import UserError

STARTED = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "4000"}


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (["train.py"], "paceline join makes runs of models, and train.py is a script, which RANK and MASTER_ADDR can "
                       "start itself; measure it with paceline run train.py"),
        (["--strategy", "torch-dp", "--workers", "2"], "torch-dp has all its workers in one process, and"),
    ],
)  # fmt: skip
def test_what_cannot_be_run_in_processes_of_others_is_refused(
    words: list[str], refusal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in STARTED.items():
        monkeypatch.setenv(name, value)
    answer = CliRunner().invoke(build_app("join"), ["join", *words])
    assert isinstance(answer.exception, UserError)
    assert refusal in str(answer.exception)
