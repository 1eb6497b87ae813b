"""What is seen of a run's processes from outside."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from paceline.runs.meters.gpus import GpuMeter
from paceline.runs.meters.watch import LOG_BYTES, LOOK_SECONDS, MOST_LOGS, Watch, descendants, private_bytes
from paceline.runs.wire import LogEvent, UseEvent


class Clock:
    """Time that passes when it is told to."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def watch(clock: Clock, logs: dict[int, Path] | None = None, gpus: GpuMeter | None = None) -> Watch:
    return Watch(lambda: [os.getpid()], logs or {}, gpus, clock)


def test_the_first_look_notes_where_things_stand_and_later_ones_come_once_a_second(clock: Clock) -> None:
    watched = watch(clock)
    assert watched.look() == []
    clock.now += LOOK_SECONDS / 2
    assert watched.look() == []
    clock.now += LOOK_SECONDS
    (use,) = watched.look()
    assert isinstance(use, UseEvent) and use.memory_bytes > 1 << 20


def test_cores_are_cpu_seconds_of_the_processes_for_each_second(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    used = {"seconds": 10.0}
    monkeypatch.setattr("paceline.runs.meters.watch.cpu_seconds", lambda _pid: used["seconds"])
    monkeypatch.setattr("paceline.runs.meters.watch.descendants", lambda pid: [pid, -1])
    watched = watch(clock)
    watched.look()
    clock.now, used["seconds"] = clock.now + 2.0, 13.0
    (use,) = watched.look()
    assert isinstance(use, UseEvent) and use.cpu_cores == pytest.approx(2 * 3.0 / 2.0)


def test_what_processes_print_is_told_once_and_of_much_the_end(clock: Clock, tmp_path: Path) -> None:
    logs = {rank: tmp_path / f"{rank}.log" for rank in range(MOST_LOGS + 1)}
    watched = watch(clock, logs)
    watched.look()
    for rank, path in logs.items():
        path.write_text(f"hello of {rank}\n")
    told = []
    for _ in range(3):
        clock.now += LOOK_SECONDS
        told.append([event for event in watched.look() if isinstance(event, LogEvent)])
    assert [len(events) for events in told] == [MOST_LOGS, 1, 0]
    assert told[1] == [LogEvent(rank=MOST_LOGS, text=f"hello of {MOST_LOGS}\n")]
    with logs[0].open("ab") as log:
        log.write(b"x" * 10 * LOG_BYTES + b"\xff end\n")
    clock.now += LOOK_SECONDS
    (event,) = [event for event in watched.look() if isinstance(event, LogEvent)]
    assert len(event.text) == LOG_BYTES and event.text.endswith("\ufffd end\n")


def test_processes_that_a_process_started_are_counted_with_it() -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        assert started.stdout is not None
        started.stdout.readline()  # its child runs now
        family = descendants(started.pid)
        started.communicate(b"\n")
    assert family[0] == started.pid and len(family) == 2


def test_a_process_that_is_gone_uses_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    assert (descendants(ended.pid), private_bytes(ended.pid)) == ([ended.pid], 0)


def test_gpus_tell_how_busy_they_are_and_what_they_hold(clock: Clock) -> None:
    nvml = SimpleNamespace(
        NVMLError=RuntimeError, nvmlDeviceGetComputeRunningProcesses=lambda _gpu: [],
        nvmlDeviceGetMemoryInfo=lambda gpu: SimpleNamespace(used=1000 * (gpu + 1)),
    )  # fmt: skip
    meter = GpuMeter(nvml, [0, 1], lambda: 0)
    meter.readings.append([(40, 1000, 0), (60, 1000, 0)])
    watched = watch(clock, gpus=meter)
    watched.look()
    clock.now += LOOK_SECONDS
    (use,) = watched.look()
    assert isinstance(use, UseEvent) and (use.gpu_share, use.gpu_memory_bytes) == (0.5, 3000)
