"""Every way a run can end, each with its reason in words; the study goes on after each of them."""

import pytest

from integration.conftest import Ended, Tool
from paceline.record import Record, Status

# Of the run that hangs; all others must get by with it on a busy machine.
LIMIT_SECONDS = 15
FAULTS = f"""
name = "faults"
[fixed]
strategy = "fake"
workers = 2
global_batch = 64
steps = 4
timeout_seconds = {LIMIT_SECONDS}
knobs = {{ fault_rank = 1 }}
[factors.knobs]
fault = ["hang", "fail", "none", "user_error", "kill", "out_of_memory", "exit"]
"""
ENDINGS = {
    "none": (Status.OK, None),
    "fail": (Status.FAILED, "rank 1 (worker): RuntimeError: this run was told to fail"),
    "user_error": (Status.FAILED, "this run was told that its input is wrong; ask for something else"),
    "out_of_memory": (Status.OUT_OF_MEMORY, "rank 1 (worker): MemoryError"),
    "hang": (Status.TIMED_OUT, f"did not end within {LIMIT_SECONDS} s (timeout_seconds)"),
    "kill": (Status.FAILED, "rank 1 (worker) was killed by SIGKILL"),
    "exit": (Status.FAILED, "rank 1 (worker) ended with exit code 3 and no result"),
}


@pytest.fixture(scope="module")
def faults(shared_tool: Tool) -> tuple[Ended, dict[str, Record]]:
    """One study with all the faults, and its records by fault."""
    shared_tool.write("faults.toml", FAULTS)
    ended = shared_tool("run", "faults.toml")
    return ended, {str(record.spec.knobs.get("fault", "none")): record for record in shared_tool.records()}


@pytest.mark.parametrize("fault", ENDINGS)
def test_a_run_ends_with_its_status_and_a_reason_in_words(faults: tuple[Ended, dict[str, Record]], fault: str) -> None:
    record = faults[1][fault]
    assert (record.status, record.reason) == ENDINGS[fault]


def test_a_study_goes_on_after_failed_runs_and_exits_with_1(faults: tuple[Ended, dict[str, Record]]) -> None:
    ended, records = faults
    assert ended.code == 1
    assert set(records) == set(ENDINGS)
    assert "Traceback" not in ended.err


def test_every_reason_is_shown_beside_the_results(faults: tuple[Ended, dict[str, Record]]) -> None:
    said = faults[0].said
    for status, reason in ENDINGS.values():
        if reason is not None:
            assert reason in said
            assert str(status).replace("_", " ") in said


def test_the_log_of_the_rank_that_failed_is_kept(faults: tuple[Ended, dict[str, Record]]) -> None:
    records = faults[1]
    assert "RuntimeError: this run was told to fail" in records["fail"].log_tail
    assert records["none"].log_tail == ""


def test_a_run_that_cannot_be_made_here_is_skipped_with_a_reason_and_the_rest_is_run(tool: Tool) -> None:
    ended = tool("run", "--strategy", "fake", "--steps", "2", "--device", "cpu,cuda")
    assert ended.code == 0
    assert "1 run to make, 1 skipped" in ended.err
    found = {record.spec.device: (record.status, record.reason) for record in tool.records()}
    assert found == {
        "cpu": (Status.OK, None),
        "cuda": (Status.SKIPPED, "fake does not run with device cuda; it offers cpu"),
    }
    assert "fake does not run with device cuda; it offers cpu" in ended.said


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_loss_that_is_not_a_number_is_a_finding_and_the_run_is_kept(tool: Tool, workers: str) -> None:
    ended = tool("run", "--strategy", "fake", "--knob", "fault=nan", "--steps", "4", "--workers", workers)
    assert ended.code == 0, ended.err
    (record,) = tool.records()
    assert record.status is Status.OK
    assert "loss_not_finite" in {finding.code for finding in record.findings}
    assert "the loss is not a finite number from step 2 on" in ended.said
    assert record.epochs[0].steps == 4
    assert len(record.losses) == 4
    assert record.losses[1] is None


def test_a_stored_failure_is_one_when_its_study_is_run_again(tool: Tool) -> None:
    command = ("run", "--strategy", "fake", "--steps", "2", "--knob", "fault=fail")
    assert tool(*command).code == 1
    again = tool(*command)
    assert again.code == 1
    assert "nothing to do" in again.err
    assert "1 stored run did not end well; --retry repeats it" in again.err


def test_a_study_of_which_nothing_could_be_run_does_not_end_well(tool: Tool) -> None:
    ended = tool("run", "--strategy", "fake", "--steps", "2", "--device", "cuda")
    assert ended.code == 1
    assert "no run of command-line gave a result; the reasons are above" in ended.err
