"""Results files under strain: a full disk, a removed file, several writers, damage."""

import shutil
import sqlite3
import subprocess
from pathlib import Path

from campaign.case import Case, LostError, SkippedError, watch

RUNS = 6
STUDY = """
name = "stored"
[fixed]
strategy = "fake"
global_batch = 64
[factors]
steps = [2, 3, 4, 5, 6, {longest}]
"""
SHELL_REFUSED = 77
# The disk is private to this shell and goes with it.
SMALL_DISK = """
mkdir small && mount -t tmpfs -o size={size}k none small || exit 77
"$@" run study.toml --db small/paceline.db; echo "code $?"
mount -o remount,size=64m small || exit 77
"$@" run study.toml --db small/paceline.db; echo "code $?"
cp small/paceline.db paceline.db
"""


def full_disk(case: Case) -> None:
    """A disk that fills up in the middle of a study, and has space again."""
    (case.folder / "study.toml").write_text(STUDY.format(longest=case.chance.choice((50, 5000, 20000))))
    shell = SMALL_DISK.format(size=case.chance.randint(24, 300))
    ended = subprocess.run(
        ["unshare", "--mount", "sh", "-c", shell, "sh", *case.tool], cwd=case.folder, env=case.environment,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    codes = [int(line.removeprefix("code ")) for line in ended.stdout.splitlines() if line.startswith("code ")]
    if ended.returncode == SHELL_REFUSED or not codes:
        raise SkippedError("a small disk cannot be mounted here")
    if codes[0] not in (0, 2) or codes[1] != 0 or "Traceback (most" in ended.stderr:
        raise LostError(f"exit codes {codes}: {ended.stderr.strip()[-300:]}")
    case.expect_each_once(RUNS)
    case.expect_clean()


def removed_store(case: Case) -> None:
    """The file is removed in the middle of a study: never exit code 0 with runs missing."""
    (case.folder / "study.toml").write_text(STUDY.format(longest=20))
    studied = watch(case, "run", "study.toml")
    studied.until("start-up", case.chance.randint(2, RUNS))
    for path in case.folder.glob("paceline.db*"):
        path.unlink()
    ended = studied.finish()
    if ended.code == 0 and len(case.stored()) < RUNS:
        raise LostError(f"exit code 0 with {len(case.stored())} runs stored of {RUNS}")
    case.expect_clean()


def several_writers(case: Case) -> None:
    """Two or three tools make one study: each run once, none lost."""
    (case.folder / "study.toml").write_text(STUDY.format(longest=20))
    tools = [watch(case, "run", "study.toml") for _ in range(case.chance.choice((2, 3)))]
    codes = [tool.finish().code for tool in tools]
    if any(codes):
        raise LostError(f"exit codes {codes}: {''.join(tools[0].lines)[-300:]}")
    case.expect_each_once(RUNS)
    case.expect_clean()


def _whole_store(case: Case) -> Path:
    """A store of a few runs, made once for all cases of a session."""
    whole = case.folder.parent / "whole.db"
    if not whole.exists():
        (case.folder / "study.toml").write_text(STUDY.format(longest=20))
        case.run("run", "study.toml", "--db", "made.db")
        connection = sqlite3.connect(case.folder / "made.db")
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.close()
        shutil.copy(case.folder / "made.db", whole)
    return whole


def damaged_store(case: Case) -> None:
    """Bytes or cells of a store are changed: commands say so and leave the file as it is."""
    path = case.folder / "damaged.db"
    shutil.copy(_whole_store(case), path)
    how = case.chance.choice(("bytes", "cut", "zeroes", "cell", "cell", "cell", "table"))
    if how in ("cell", "table"):
        _damage_table(case, path, how)
    else:
        content = bytearray(path.read_bytes())
        at, count = case.chance.randrange(len(content)), case.chance.choice((1, 8, 64, 4096))
        if how == "cut":
            del content[at:]
        else:
            changed = bytes(count) if how == "zeroes" else case.chance.randbytes(count)
            content[at : at + count] = changed[: len(content) - at]
        path.write_bytes(content)
    before = path.read_bytes()
    command = case.chance.choice((["show"], ["show", "--json"], ["export", "csv", "--out", "exported"], ["explain"]))
    case.run(*command, "--db", path.name)
    if path.read_bytes() != before:
        raise LostError(f"{command} wrote to a damaged file ({how})")


def _damage_table(case: Case, path: Path, how: str) -> None:
    connection = sqlite3.connect(path)
    with connection:
        if how == "table":
            connection.execute(f"DROP TABLE {case.chance.choice(('environments', 'members', 'steps', 'runs'))}")
        else:
            table, column = case.chance.choice((("runs", "record"), ("environments", "fields"), ("runs", "status")))
            values = ("", "{", "null", "[]", "\x00", "{}", '{"study": 1e999}', "[" * 5000)
            connection.execute(f"UPDATE {table} SET {column} = ?", (case.chance.choice(values),))
    connection.close()
