"""The results file under strain: several tools at once, and a disk that fills up."""

import shutil
import subprocess
from pathlib import Path

import pytest

from integration.conftest import PATIENCE_SECONDS, SCRIPT, Tool
from paceline.record import Status

TOOLS_AT_ONCE = 3
# A private mount that goes with the shell. The record of many steps does not fit; then a filler takes what is left.
FULL_DISK = """
mkdir small && mount -t tmpfs -o size=256k none small || exit 77
paceline() { "$SCRIPT" run --strategy fake --db small/paceline.db "$@"; }
paceline --steps 2; echo "small record: $?"
paceline --steps 20000; echo "large record: $?"
dd if=/dev/zero of=small/filler bs=1k 2> /dev/null
paceline --steps 3; echo "full disk: $?"
rm small/filler
paceline --steps 3; echo "space again: $?"
cp small/paceline.db after.db
"""
NOT_PERMITTED = 77


def test_several_tools_write_to_one_file_at_once(tool: Tool) -> None:
    commands = [
        ["run", "--strategy", "fake", "--steps", "2", "--repeats", "2", "--seed", str(seed)]
        for seed in range(TOOLS_AT_ONCE)
    ]
    started = [
        subprocess.Popen([SCRIPT, *words], cwd=tool.folder, env=tool.environment, stderr=subprocess.PIPE, text=True,
                         stdout=subprocess.DEVNULL)
        for words in commands
    ]  # fmt: skip
    ends = [(process.communicate(timeout=PATIENCE_SECONDS)[1], process.returncode) for process in started]
    assert [code for _, code in ends] == [0] * TOOLS_AT_ONCE, ends
    records = tool.records()
    assert sorted((record.spec.seed, record.repeat) for record in records) == [
        (seed, repeat) for seed in range(TOOLS_AT_ONCE) for repeat in range(2)
    ]
    assert {record.status for record in records} == {Status.OK}


def private_mounts() -> list[str]:
    """The command that gives a shell mounts of its own, where this user may have them."""
    for words in (["unshare", "--mount"], ["unshare", "--map-root-user", "--mount"]):
        if (
            shutil.which("unshare")
            and subprocess.run([*words, "true"], capture_output=True, check=False).returncode == 0
        ):
            return words
    pytest.skip("mounting a small disk is not permitted here")


def test_a_full_disk_is_told_in_a_sentence_and_what_was_stored_is_kept(tool: Tool) -> None:
    ended = subprocess.run(
        [*private_mounts(), "sh", "-c", FULL_DISK], cwd=tool.folder, env={**tool.environment, "SCRIPT": str(SCRIPT)},
        capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False,
    )  # fmt: skip
    if ended.returncode == NOT_PERMITTED:
        pytest.skip("mounting a small disk is not permitted here")
    codes = [line for line in ended.stdout.splitlines() if line[-3:-1] == ": "]
    assert codes == ["small record: 0", "large record: 2", "full disk: 2", "space again: 0"], ended.stderr
    said = " ".join(ended.stderr.split())
    assert "could not be stored in small/paceline.db: database or disk is full; free space or choose another" in said
    assert "Traceback" not in ended.stderr
    assert [(record.spec.steps, record.status) for record in tool.records("after.db")] == [
        (2, Status.OK),
        (3, Status.OK),
    ]


def test_the_folder_of_a_new_results_file_is_made(tool: Tool) -> None:
    ended = tool("run", "--strategy", "fake", "--steps", "2", "--db", "new/folder/results.db")
    assert ended.code == 0
    assert Path(tool.folder, "new/folder/results.db").is_file()
