"""A few cases of every part of the campaign, always the same ones; `make soak MINUTES=30` tries more of them."""

from pathlib import Path

import pytest

from campaign.__main__ import PARTS, Tally, try_case
from campaign.leaks import Leaks
from integration.conftest import IMPORTED, SCRIPT
from interpreters import Interpreter

SEED = 1
# Cases that take a fraction of a second each come in larger numbers.
COUNTS = {"damaged stores": 12, "commands": 12, "studies": 12, "system files": 6, "signals": 3}


@pytest.fixture(scope="module")
def tool():
    """The command line, forked from a process that has imported it."""
    interpreter = Interpreter(*IMPORTED, environment={"OPENBLAS_NUM_THREADS": "1"})
    yield (str(interpreter.command(SCRIPT)),)
    interpreter.close()


@pytest.mark.parametrize("part", PARTS)
def test_nothing_is_lost_in_a_short_form_of(part: str, tmp_path: Path, tool: tuple[str, ...]) -> None:
    tally, leaks = Tally(), Leaks()
    for number in range(COUNTS.get(part, 1)):
        try_case(part, number, SEED, tmp_path, tally, tool, short=True)
    assert tally.lost == []
    assert leaks.found(str(tmp_path)) == []
    if tally.skipped and not tally.tried:
        pytest.skip(tally.skipped)
    assert tally.tried > 0
