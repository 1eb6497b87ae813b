"""Running the same study again: nothing is done twice unless asked for, and a plan alone changes nothing."""

import pytest

from integration.conftest import SCRIPT, Tool
from paceline.record import Status

SMALL = """
name = "small"
repeats = 2
[fixed]
strategy = "fake"
global_batch = 64
steps = 2
[factors]
workers = [1, 2]
"""
ONE_FAILS = """
name = "one-fails"
[fixed]
strategy = "fake"
global_batch = 64
steps = 2
[factors.knobs]
fault = ["none", "fail"]
"""


def test_the_second_time_does_nothing_and_says_so(tool: Tool) -> None:
    tool.write("small.toml", SMALL)
    first = tool("run", "small.toml")
    before = tool.records()
    second = tool("run", "small.toml")
    assert (first.code, second.code) == (0, 0)
    assert "small: 4 runs to make" in first.err
    assert "nothing to do: all 4 runs of small are stored (--fresh repeats them)" in second.err
    assert second.out == first.out
    assert [record.id for record in tool.records()] == [record.id for record in before]


def test_fresh_repeats_every_run_and_the_newest_counts(tool: Tool) -> None:
    tool.write("small.toml", SMALL)
    tool("run", "small.toml")
    before = {record.id for record in tool.records()}
    ended = tool("run", "small.toml", "--fresh")
    assert ended.code == 0
    assert "small: 4 runs to make" in ended.err
    after = {record.id for record in tool.records()}
    assert len(after) == 4
    assert not after & before


def test_more_repeats_add_to_what_is_there(tool: Tool) -> None:
    tool.write("small.toml", SMALL)
    tool("run", "small.toml")
    ended = tool("run", "small.toml", "--repeats", "3")
    assert "2 runs to make, 4 already stored" in ended.err
    assert sorted(record.repeat for record in tool.records()) == [0, 0, 1, 1, 2, 2]


def test_retry_repeats_only_the_runs_that_did_not_end_well(tool: Tool) -> None:
    tool.write("one-fails.toml", ONE_FAILS)
    first = tool("run", "one-fails.toml")
    before = {record.status: record.id for record in tool.records()}
    again = tool("run", "one-fails.toml")
    retried = tool("run", "one-fails.toml", "--retry")
    after = {record.status: record.id for record in tool.records()}
    assert (first.code, retried.code) == (1, 1)
    assert "nothing to do" in again.err
    assert "1 run to make, 1 already stored" in retried.err
    assert after[Status.OK] == before[Status.OK]
    assert after[Status.FAILED] != before[Status.FAILED]


def test_a_dry_run_prints_the_plan_and_writes_nothing(tool: Tool) -> None:
    tool.write("small.toml", SMALL)
    ended = tool("run", "small.toml", "--dry-run")
    assert ended.code == 0
    *_, count, time = ended.out.splitlines()
    assert count == "4 runs to make"
    assert time.startswith("about ")
    assert [line.split() for line in ended.out.splitlines()[1:3]] == [
        ["mnist-small", "mnist-5k", "fake", "1", "64", "2"],
        ["mnist-small", "mnist-5k", "fake", "2", "64", "2"],
    ]
    assert tool.listing() == ["small.toml"]


def test_a_run_that_another_study_made_belongs_to_both(tool: Tool) -> None:
    tool.write("small.toml", SMALL)
    tool.write("other.toml", SMALL.replace('"small"', '"other"'))
    tool("run", "small.toml")
    ended = tool("run", "other.toml")
    assert "nothing to do: all 4 runs of other are stored" in ended.err
    assert len(tool.records(study="other")) == 4


@pytest.mark.parametrize("name", ["random.py", "types.py", "numpy.py"])
def test_files_in_the_users_folder_do_not_stand_in_for_modules_of_the_same_name(tool: Tool, name: str) -> None:
    tool.write(name, "raise RuntimeError('the wrong file was imported')\n")
    tool.script = SCRIPT
    ended = tool("run", "--strategy", "fake", "--steps", "2")
    assert ended.code == 0, ended.err
    assert tool.records()[0].ok
