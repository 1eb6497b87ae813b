"""Slices without a GPU: a stand-in for NVIDIA's control program becomes a daemon, notes its number and obeys quit."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paceline.contract.context import Process
from paceline.runs import slices
from paceline.runs.processes import is_alive
from paceline.runs.slices import first_gpu, mps, slice_environment, sweep, take_down
from paceline.spec import RunSpec
from paceline.systems import System

CONTROL = """#!{python}
import os, sys, time, pathlib, signal
folder = pathlib.Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
note = folder / "nvidia-cuda-mps-control.pid"
if sys.argv[1:] == ["-d"]:
    if (folder / "refuse").exists() or os.environ.get("MPS_REFUSES"):
        sys.exit("no GPU for me")
    if os.fork():
        for _ in range(500):
            if note.exists() and note.read_text(): sys.exit(0)
            time.sleep(0.01)
    os.setsid()
    pathlib.Path("/proc/self/comm").write_text("nvidia-cuda-mps-control")
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2): os.dup2(null, fd)
    (folder / "visible").write_text(os.environ["CUDA_VISIBLE_DEVICES"])
    note.write_text(str(os.getpid()))
    time.sleep(60)
elif "quit" in sys.stdin.read() and not (folder / "stubborn").exists():
    os.kill(int(note.read_text()), signal.SIGKILL)
"""


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    program = tmp_path / "bin" / "nvidia-cuda-mps-control"
    program.parent.mkdir()
    program.write_text(CONTROL.format(python=sys.executable))
    program.chmod(0o755)
    folders = tmp_path / "folders"
    folders.mkdir()
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setattr("tempfile.tempdir", str(folders))
    yield folders
    for left in folders.glob("*"):
        take_down(left)


@pytest.fixture
def sliced(make_spec: Callable[..., RunSpec]) -> RunSpec:
    return make_spec(device="cuda-slice", workers=2, slices=4)


def daemon_of(folder: Path) -> int:
    return int((folder / "nvidia-cuda-mps-control.pid").read_text())


def ends(pid: int) -> bool:
    until = time.monotonic() + 10
    while is_alive(pid) and time.monotonic() < until:
        time.sleep(0.02)
    return not is_alive(pid)


def test_each_worker_gets_its_share_whatever_their_number(sliced: RunSpec, make_system: Callable[..., System]) -> None:
    env = slice_environment(sliced, Process(1, 2, "worker", 1, (0,)), make_system(gpus=1))
    assert env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"
    assert env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"0={16 * 1024 // 4}M"
    assert not [name for name in env if name.startswith("NCCL_")]


def test_a_process_that_drives_several_workers_gets_the_shares_of_all(
    sliced: RunSpec, make_system: Callable[..., System]
) -> None:
    env = slice_environment(sliced, Process(0, 1, "worker", 0, (0,), workers_each=2), make_system(gpus=1))
    assert env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "50"


def test_other_devices_have_no_slices(make_spec: Callable[..., RunSpec], make_system: Callable[..., System]) -> None:
    process = Process(0, 1, "worker", 0, (0,))
    assert slice_environment(make_spec(device="cuda"), process, make_system(gpus=1)) == {}
    with mps(make_spec()) as paths:
        assert paths == {}


def test_the_daemon_lives_as_long_as_the_run_and_leaves_nothing(control: Path, sliced: RunSpec) -> None:
    with mps(sliced) as paths:
        folder = Path(paths["CUDA_MPS_PIPE_DIRECTORY"])
        daemon = daemon_of(folder)
        assert is_alive(daemon)
    assert ends(daemon)
    assert list(control.iterdir()) == []


def test_a_daemon_that_does_not_obey_is_ended_by_force(
    control: Path, sliced: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "QUIT_SECONDS", 0.3)
    with mps(sliced) as paths:
        folder = Path(paths["CUDA_MPS_PIPE_DIRECTORY"])
        (folder / "stubborn").touch()
        daemon = daemon_of(folder)
    assert ends(daemon)


def test_the_daemon_sees_the_first_visible_gpu_only(
    control: Path, sliced: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    with mps(sliced) as paths:
        assert (Path(paths["CUDA_MPS_PIPE_DIRECTORY"]) / "visible").read_text() == "3"


def test_a_daemon_that_cannot_start_is_told_with_its_own_words(
    control: Path, sliced: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MPS_REFUSES", "1")
    with pytest.raises(RuntimeError, match="no GPU for me"), mps(sliced):
        pass
    assert list(control.iterdir()) == []


def test_what_a_killed_tool_left_running_is_taken_down_by_the_next(
    control: Path, sliced: RunSpec, child_environment: dict[str, str]
) -> None:
    killed = (
        "import os, sys, tempfile; from paceline.runs.slices import mps; from paceline.spec import RunSpec;"
        f"tempfile.tempdir = {str(control)!r};"
        "context = mps(RunSpec(device='cuda-slice', workers=2, slices=4, global_batch=8, steps=1));"
        "print(context.__enter__()['CUDA_MPS_PIPE_DIRECTORY'], flush=True); os.kill(os.getpid(), 9)"
    )
    env = {**child_environment, "PATH": os.environ["PATH"]}
    said = subprocess.run([sys.executable, "-c", killed], env=env, capture_output=True, text=True, check=False)
    folder = Path(said.stdout.strip())
    daemon = daemon_of(folder)
    assert is_alive(daemon)
    sweep()
    assert ends(daemon)
    assert not folder.exists()


def test_the_daemon_of_a_tool_that_still_runs_is_left_alone(control: Path, sliced: RunSpec) -> None:
    with mps(sliced) as paths:
        daemon = daemon_of(Path(paths["CUDA_MPS_PIPE_DIRECTORY"]))
        sweep()
        assert is_alive(daemon)


@pytest.mark.parametrize(("visible", "first"), [(None, "0"), ("", "0"), ("2, 3", "2"), ("GPU-ab,1", "GPU-ab")])
def test_the_gpu_to_cut_is_the_first_that_cuda_sees(visible: str | None, first: str) -> None:
    assert first_gpu(visible) == first
