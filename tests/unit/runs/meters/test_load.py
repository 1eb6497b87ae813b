"""Whether other programs kept the machine busy, from readings at the start and the end of a run."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.runs.meters.load import other_load_finding, read_load, with_run_seconds

# So long ago that what happens between two readings in a test is nothing beside it.
SECONDS = 100_000.0
CORE_SECONDS = SECONDS * (os.cpu_count() or 1)


@pytest.fixture
def found():
    """What is said of a run in which the machine, its host and the run itself used these shares of all cores."""

    def judge(busy, own=0.0, stolen=0.0, queued=0.0, machine=""):
        now = read_load()
        if now is None:
            pytest.skip("this system has no /proc/stat")
        began = replace(
            now,
            at=now.at - SECONDS,
            busy_seconds=now.busy_seconds - busy * CORE_SECONDS,
            stolen_seconds=now.stolen_seconds - stolen * CORE_SECONDS,
            run_seconds=now.run_seconds - own * CORE_SECONDS,
        )
        return other_load_finding(began, now, queued, machine)

    return judge


def test_an_idle_machine_is_no_finding(found):
    assert found(busy=0.0) is None


def test_what_the_run_itself_did_is_no_finding(found):
    assert found(busy=0.95, own=0.95) is None


def test_a_little_work_of_others_is_no_finding(found):
    assert found(busy=0.55, own=0.5) is None


def test_other_programs_are_a_finding_with_their_share_and_a_hint(found):
    finding = found(busy=0.75, own=0.5)
    assert finding.code == "other_load"
    assert "other programs used 25% of the machine during the run" in finding.text
    assert "close other programs" in finding.hint
    assert "CPU time per step" in finding.hint


def test_a_machine_of_a_fleet_is_named(found):
    assert "other programs used 25% of left during the run" in found(busy=0.75, own=0.5, machine="left").text


def test_time_that_the_host_gave_to_other_guests_is_a_finding(found):
    finding = found(busy=0.5, own=0.5, stolen=0.3)
    assert "other guests of its host" in finding.text
    assert "30%" in finding.text


def test_more_work_accounted_to_the_run_than_to_the_machine_is_no_negative_share(found):
    assert found(busy=0.1, own=0.9) is None


def test_a_system_without_accounts_has_no_finding():
    assert other_load_finding(None, None) is None


def test_work_of_several_agents_of_a_host_is_the_runs(found):
    reading = read_load()
    if reading is None:
        pytest.skip("this system has no /proc/stat")
    joined = with_run_seconds(reading, [replace(reading, run_seconds=2.0), replace(reading, run_seconds=3.0)])
    assert joined.run_seconds == reading.run_seconds + 5.0


def test_work_of_the_run_that_the_kernel_counts_elsewhere_is_its_own():
    before, after = read_load(lambda: 5.0), read_load(lambda: 7.0)
    if before is None:
        pytest.skip("this system has no /proc/stat")
    assert after.run_seconds - before.run_seconds == pytest.approx(2.0, abs=0.5)


def test_a_process_that_stood_without_a_core_is_told_where_others_used_a_little_of_it(found):
    finding = found(busy=0.55, own=0.5, queued=0.14)
    assert "other programs used 5% of the machine during the run" in finding.text
    assert "waited for a core for 14% of it" in finding.text


def test_standing_without_a_core_is_no_finding_where_nobody_else_ran(found):
    assert found(busy=0.5, own=0.5, queued=0.5) is None


def test_time_without_a_core_is_counted_by_the_kernel():
    core = min(os.sched_getaffinity(0))
    spin = f"import os; os.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    if not Path("/proc/self/schedstat").exists():
        pytest.skip("this kernel keeps no accounts of its run queues")
    waits = f"""
import os, time
os.sched_setaffinity(0, {{{core}}})
from paceline.runs.processes import run_queue_seconds
until, before = time.monotonic() + 0.6, run_queue_seconds()
while time.monotonic() < until: pass
print(run_queue_seconds() - before)
"""
    beside = subprocess.Popen([sys.executable, "-c", spin])
    try:
        told = subprocess.run([sys.executable, "-c", waits], capture_output=True, text=True, check=True).stdout
    finally:
        beside.kill()
        beside.wait()
    assert 0.1 < float(told) < 0.6
