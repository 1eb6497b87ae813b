"""Kills and signals: the tool, a rank, a server or the fork server is stopped at a moment of a chosen phase."""

import os
import signal
import time
from pathlib import Path

from campaign.case import Case, LostError, SkippedError, Watched, watch
from paceline.runs.processes import is_alive
from paceline.systems import local_system

PHASES = ("start-up", "training", "storing")
RUNS = 4
FAKE = """
name = "fake"
order_seed = {seed}
[fixed]
strategy = "fake"
workers = 2
global_batch = 64
knobs = {{ real_time = true, step_ms = 60.0 }}
[factors]
steps = [3, 4, 5, 6]
"""
# One of each kind: a ring, shards, stages, a server, and the same of other frameworks.
REAL = ("torch-ddp", "torch-fsdp", "torch-pipeline", "torch-ps-sync", "tf-mirrored", "tf-ps", "jax-data")
REAL_RUNS = 2
REAL_STUDY = """
name = "real"
[fixed]
strategy = "{strategy}"
workers = 2
global_batch = 32
train_samples = 256
[factors]
steps = [40, 41]
"""


def _command_line(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def _children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _victims(tool: int) -> dict[str, list[int]]:
    """The processes of a study by what they are; a rank may be a server, which is one of the last ranks."""
    forking = [pid for pid in _children(tool) if "paceline.runs.fork_server" in _command_line(pid)]
    ranks = [pid for pid in _children(tool) if "paceline.runs.worker" in _command_line(pid) and pid not in forking]
    return {
        "tool": [tool],
        "rank": ranks + [child for pid in forking for child in _children(pid)],
        "fork server": forking,
    }


def _kill(case: Case, studied: Watched, runs: int, kinds: tuple[str, ...]) -> None:
    kind, phase = case.chance.choice(kinds), case.chance.choice(PHASES)
    if not studied.until(phase, case.chance.randint(1, runs)):
        raise LostError(f"ended before {phase}: {''.join(studied.lines)[-300:]}")
    time.sleep(case.chance.random() * case.chance.choice((0.01, 0.1, 1.0)))
    victims = _victims(studied.process.pid)
    chosen = victims[kind] or victims["tool"]
    pid = case.chance.choice(chosen)
    if is_alive(pid):
        os.kill(pid, signal.SIGKILL)
    studied.finish(-signal.SIGKILL)
    case.expect_quiet()
    case.expect_stored(studied.ended)
    ended = case.run("run", "study.toml")
    if ended.code not in (0, 1):
        raise LostError(f"the study did not go on: exit code {ended.code}: {ended.err[-300:]}")
    case.expect_each_once(runs)
    case.expect_clean()


def kill_fake(case: Case) -> None:
    """SIGKILL of the tool or a rank of fake runs."""
    (case.folder / "study.toml").write_text(FAKE.format(seed=case.number))
    _kill(case, watch(case, "run", "study.toml"), RUNS, ("tool", "rank"))


def kill_real(case: Case) -> None:
    """SIGKILL of the tool, a rank, a server or the fork server of a real strategy."""
    strategy = "torch-ddp" if case.short else REAL[case.number % len(REAL)]
    framework = {"tf": "tensorflow"}.get(strategy.partition("-")[0], strategy.partition("-")[0])
    if framework not in local_system().frameworks:
        raise SkippedError(f"{framework} is not installed")
    (case.folder / "study.toml").write_text(REAL_STUDY.format(strategy=strategy))
    kinds = ("fork server",) if case.short else ("tool", "rank", "fork server")
    _kill(case, watch(case, "run", "study.toml"), REAL_RUNS, kinds)


def send_signal(case: Case) -> None:
    """INT, TERM, HUP and QUIT end a study with 130 and an interrupted record; STOP and CONT change nothing."""
    (case.folder / "study.toml").write_text(FAKE.format(seed=case.number))
    number = (signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT, signal.SIGINT, signal.SIGSTOP)[case.number % 5]
    studied = watch(case, "run", "study.toml")
    phase = case.chance.choice(PHASES)
    if not studied.until(phase, case.chance.randint(1, RUNS - 1)):
        raise LostError(f"ended before {phase}")
    time.sleep(case.chance.random() * case.chance.choice((0.01, 0.1, 0.3)))
    studied.process.send_signal(number)
    if number == signal.SIGSTOP:
        time.sleep(case.chance.random())
        studied.process.send_signal(signal.SIGCONT)
    code = studied.finish().code
    if code != (0 if number == signal.SIGSTOP else 130):
        raise LostError(f"{number.name} in {phase}: exit code {code}")
    case.expect_clean()
    case.expect_stored(studied.ended)
    begun = sum('"event": "started"' in line for line in studied.lines)
    if phase == "training" and begun > sum(case.stored().values()):
        raise LostError(f"{number.name} in {phase}: {begun} runs begun, stored {sum(case.stored().values())}")
    if case.run("run", "study.toml").code != 0:
        raise LostError("the study did not go on")
    case.expect_each_once(RUNS)


def fault_every_tenth(case: Case) -> None:
    """Many fake runs of which every tenth fails: none lost, none twice, the tool's memory flat."""
    repeats = 3 if case.short else 20
    (case.folder / "study.toml").write_text(_tenth_study(case, repeats))
    studied, memory = watch(case, "run", "study.toml"), []
    while studied.until("start-up", 1):
        memory.append(_resident_bytes(studied.process.pid))
    if studied.finish().code != 1:
        raise LostError("runs failed and the exit code does not say so")
    case.expect_each_once(10 * repeats)
    failed = sum(count for (_, _, status), count in case.stored().items() if status != "ok")
    if failed != repeats:
        raise LostError(f"{failed} runs failed of {repeats} that were told to")
    case.expect_clean()
    grown = memory[-1] - memory[len(memory) // 3]
    if grown > max(8 << 20, memory[0] // 5):
        raise LostError(f"the tool grew by {grown >> 20} MiB in {len(memory)} runs")


def _fault(case: Case) -> str:
    return case.chance.choice(("fail", "user_error", "out_of_memory", "kill", "exit"))


def _tenth_study(case: Case, repeats: int) -> str:
    """Ten configurations, of which the one with the most steps comes to the step of its fault."""
    return (
        f'name = "faults"\nrepeats = {repeats}\n[fixed]\nstrategy = "fake"\nglobal_batch = 64\n'
        f'knobs = {{ fault = "{_fault(case)}", fault_step = 10 }}\n[factors]\nsteps = {list(range(2, 12))}\n'
    )


def _resident_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0
