"""Runs over two machines by ssh, for real: network namespaces with an sshd each. The same losses as on one machine,
and whatever is lost on the way, a record with a reason and nothing left on any machine."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from integration.conftest import PATIENCE_SECONDS, hear_interrupts, wait_until
from namespaces import NetworkOfMachines, machines, required_or_skipped
from paceline.errors import UserError
from paceline.fleet import LEASE_SECONDS, Fleet, parse_fleet
from paceline.plan import PlannedRun, complete
from paceline.record import Record, Status
from paceline.runs.fleets import Machines, open_machines
from paceline.runs.launch import launch
from paceline.runs.launchers.local import LocalLauncher
from paceline.runs.processes import stat_fields
from paceline.runs.starters import ForkServers
from paceline.spec import ModelFile, RunSpec
from paceline.store import Store
from paceline.strategies import strategy
from paceline.systems import local_system
from paceline.systems.files import load_hardware

NAMES = ("left", "right")
LONG = {"strategy": "fake", "workers": 2, "steps": 100_000, "knobs": {"real_time": True, "step_ms": 20.0}}
# A model whose modules lie beside it and in another folder of Python's path.
MODEL = {
    "here/mine.py": """
from neighbour import hidden
from project.ends import flat
from torch import nn

def build():
    return nn.Sequential(flat(), nn.Linear(784, hidden()), nn.ReLU(), nn.Linear(hidden(), 10))
""",
    "here/neighbour.py": "def hidden():\n    return 32\n",
    "elsewhere/project/__init__.py": "",
    "elsewhere/project/ends.py": "from torch.nn import Flatten as flat\n",
}
READS = """
from pathlib import Path
import numpy as np
from torch import nn

def build():
    return nn.Linear(4, 3)

def data():
    numbers = np.load(Path(__file__).parent / "numbers.npy", mmap_mode="r")
    classes = np.arange(96) % 3
    return numbers[:64], classes[:64], numbers[64:], classes[64:]
"""


@pytest.fixture(scope="module")
def network() -> Iterator[NetworkOfMachines]:
    required_or_skipped()
    with machines(*NAMES) as plugged, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PACELINE_SSH", plugged.ssh)
        yield plugged


@pytest.fixture(scope="module")
def fleet(network: NetworkOfMachines) -> Fleet:
    return parse_fleet(f"ssh:{','.join(NAMES)}")


@pytest.fixture(scope="module")
def reached(fleet: Fleet) -> Iterator[Machines]:
    with open_machines(fleet) as opened:
        yield opened


def run_on(opened: Machines, on_event: Callable[[Any], None] = lambda _event: None, **fields: Any) -> Record:
    spec = complete(RunSpec(**{"global_batch": 64, "machines": opened.names, **fields}))
    # Named twice, so that imports are shared with the runs of other tests.
    launcher = opened.launchers([spec, spec])[spec.strategy]
    return launch(PlannedRun(spec, 0), "machines", opened.system, on_event, launcher=launcher)


def run_here(forking: ForkServers, **fields: Any) -> Record:
    spec = complete(RunSpec(**{"global_batch": 64, **fields}))
    launcher = LocalLauncher(forking.starter(strategy(spec.strategy)))
    return launch(PlannedRun(spec, 0), "machines", local_system(), lambda _event: None, launcher=launcher)


def workers_on(network: NetworkOfMachines, name: str) -> list[int]:
    return [pid for pid in network.processes(name) if "-m paceline.runs.worker" in command_line(pid)]


def agents_on(network: NetworkOfMachines, name: str) -> list[int]:
    """Agents, without their guards, which are their children."""
    pids = [pid for pid in network.processes(name) if command_line(pid).endswith("-P -m paceline.runs.agent ")]
    return [pid for pid in pids if int(stat_fields(pid)[1]) not in pids]


def agent_on(network: NetworkOfMachines, name: str) -> int:
    (pid,) = agents_on(network, name)
    return pid


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def everything_on(network: NetworkOfMachines) -> set[int]:
    return {pid for name in NAMES for pid in network.processes(name)}


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("name", "knobs"),
    [
        pytest.param("torch-ddp", {}, marks=pytest.mark.torch),
        pytest.param("tf-multiworker", {}, marks=pytest.mark.tensorflow),
        pytest.param("jax-data", {"processes": True}, marks=pytest.mark.jax),
    ],
    ids=["torch-ddp", "tf-multiworker", "jax-data"],
)
def test_two_machines_train_as_one_does(
    reached: Machines, forking: ForkServers, name: str, knobs: dict[str, Any]
) -> None:
    apart = run_on(reached, strategy=name, workers=2, steps=5)
    assert apart.status is Status.OK, apart.reason
    together = run_here(forking, strategy=name, workers=2, steps=5, knobs=knobs)
    assert apart.losses == pytest.approx(together.losses, rel=1e-6)
    assert apart.epochs[0].test_accuracy == together.epochs[0].test_accuracy
    assert [rank.machine for rank in apart.ranks] == list(NAMES)
    assert [machine.name for machine in apart.machines] == list(NAMES)
    assert {finding.code for finding in apart.findings} >= {"one_host"}
    # Namespaces are of one host, whose machines have one clock: an offset beyond its error would be an error.
    for machine in apart.machines:
        assert abs(machine.clock_offset_seconds) <= machine.clock_error_seconds < 0.1


@pytest.mark.torch
@pytest.mark.timeout(300)
def test_a_model_file_travels_with_all_modules_of_the_user_that_it_imports(
    reached: Machines, forking: ForkServers, network: NetworkOfMachines, probing_without_imports: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    fields: dict[str, Any] = {"strategy": "torch-ddp", "dataset": "mnist-5k", "workers": 2, "steps": 2}
    for name, text in MODEL.items():
        for place in (network.private / name, network.private / "flat" / name.partition("/")[2]):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
    together = run_here(forking, model=ModelFile.from_text(str(network.private / "flat" / "mine.py")), **fields)
    monkeypatch.syspath_prepend(str(network.private / "elsewhere"))
    apart = run_on(reached, model=ModelFile.from_text(str(network.private / "here" / "mine.py")), **fields)
    assert apart.status is Status.OK, apart.reason
    assert apart.losses == pytest.approx(together.losses, rel=1e-6)


@pytest.mark.torch
@pytest.mark.timeout(300)
def test_data_beside_the_model_file_are_those_of_each_machine(
    reached: Machines, network: NetworkOfMachines, tmp_path: Path, probing_without_imports: None
) -> None:
    def record(folder: Path) -> Record:
        folder.mkdir(exist_ok=True)
        (folder / "reads.py").write_text(READS)
        np.save(folder / "numbers.npy", np.random.default_rng(0).normal(size=(96, 4)).astype("float32"))
        model = ModelFile.from_text(str(folder / "reads.py"))
        return run_on(reached, strategy="torch-ddp", model=model, dataset="own", workers=2, steps=2, global_batch=16)

    assert record(tmp_path).status is Status.OK
    missing = record(network.private / "data")
    assert missing.status is Status.FAILED
    assert re.match(r"on machine (left|right): data\(\) of reads.py:build fails with FileNotFoundError: .*numbers.npy",
                    str(missing.reason)), missing.reason  # fmt: skip


@pytest.mark.torch
@pytest.mark.timeout(300)
def test_where_the_time_went_is_known_across_machines(reached: Machines) -> None:
    record = run_on(reached, strategy="torch-ddp", workers=2, steps=5, global_batch=1024, instrumented=True)
    assert record.status is Status.OK, record.reason
    assert [part.rank for part in record.breakdown] == [0, 1]
    for part in record.breakdown:
        parts = (part.input, part.forward, part.backward, part.exposed, part.waiting, part.optimizer, part.other)
        assert sum(parts) == pytest.approx(part.step, rel=0.02)
        assert part.communication > 0


@pytest.mark.timeout(120)
def test_a_killed_rank_is_named_with_its_machine(reached: Machines, network: NetworkOfMachines) -> None:
    def kill(_event: Any) -> None:
        for pid in workers_on(network, "right")[:1]:
            os.kill(pid, signal.SIGKILL)

    record = run_on(reached, kill, **LONG)
    assert (record.status, record.reason) == (Status.FAILED, "rank 1 (worker) on right was killed by SIGKILL")
    assert [workers_on(network, name) for name in NAMES] == [[], []]


@pytest.mark.timeout(120)
def test_a_run_that_takes_too_long_ends_on_every_machine(reached: Machines, network: NetworkOfMachines) -> None:
    record = run_on(reached, **LONG, timeout_seconds=1.5)
    assert (record.status, record.reason) == (Status.TIMED_OUT, "did not end within 1.5 s (timeout_seconds)")
    assert [workers_on(network, name) for name in NAMES] == [[], []]


@pytest.mark.timeout(120)
def test_a_killed_agent_is_a_result_and_the_next_run_gets_another(
    reached: Machines, network: NetworkOfMachines
) -> None:
    def kill(_event: Any) -> None:
        os.kill(agent_on(network, "right"), signal.SIGKILL)

    record = run_on(reached, once(kill), **LONG)
    assert record.status is Status.FAILED
    assert str(record.reason).startswith("machine right is lost: its agent ended")
    assert [workers_on(network, name) for name in NAMES] == [[], []]
    wait_until(lambda: network.folders("right") == [], "the folder of the killed agent is gone")
    again = run_on(reached, strategy="fake", workers=2, steps=3)
    assert again.status is Status.OK, again.reason


@pytest.mark.timeout(120)
def test_an_agent_that_is_stopped_past_its_lease_leaves_nothing_behind(
    fleet: Fleet, network: NetworkOfMachines
) -> None:
    others, folders = everything_on(network), network.folders("right")
    with open_machines(fleet.model_copy(update={"lease_seconds": 3.0})) as opened:
        (agent,) = {agent for agent in agents_on(network, "right") if agent not in others}
        record = run_on(opened, once(lambda _event: os.kill(agent, signal.SIGSTOP)), **LONG)
        assert record.reason == (
            "machine right is lost: no word from its agent for 3 s (the link is cut, or the machine stands still)"
        )
        wait_until(lambda: not workers_on(network, "right"), "its processes are gone, though it never went on")
    wait_until(lambda: everything_on(network) <= others, "nothing is left on the machines")
    assert network.folders("right") == folders


@pytest.mark.timeout(120)
def test_a_cut_link_is_a_result_within_the_lease_and_leaves_nothing_behind(
    fleet: Fleet, network: NetworkOfMachines
) -> None:
    others = everything_on(network)
    with open_machines(fleet) as opened:
        agents = everything_on(network) - others
        cut_at: list[float] = []

        def cut(_event: Any) -> None:
            cut_at.append(time.monotonic())
            network.cut("right")

        try:
            record = run_on(opened, once(cut), **LONG)
            waited = time.monotonic() - cut_at[0]
            wait_until(lambda: not workers_on(network, "right"), "the cut machine ends its processes by itself")
        finally:
            network.mend("right")
    assert record.status is Status.FAILED
    assert record.reason == (
        "machine right is lost: no word from its agent for 6 s (the link is cut, or the machine stands still)"
    )
    # A hang would take the run's time limit of half an hour.
    assert waited < 20 * LEASE_SECONDS
    assert len(agents) >= len(NAMES)
    wait_until(lambda: not agents & everything_on(network), "the agents are gone")


@pytest.mark.timeout(120)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["killed", "interrupted"])
def test_machines_are_left_empty_however_the_launcher_ends(
    network: NetworkOfMachines, tmp_path: Path, how: signal.Signals
) -> None:
    others = everything_on(network)
    words = ["run", "--on", "ssh:left,right", "--strategy", "fake", "--workers", "2", "--steps", "100000",
             "--knob", "real_time=true", "--db", str(tmp_path / "results.db")]  # fmt: skip
    launcher = subprocess.Popen(
        [sys.executable, "-m", "paceline", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        preexec_fn=hear_interrupts,  # noqa: PLW1509
    )  # fmt: skip
    try:
        wait_until(lambda: workers_on(network, "right") and workers_on(network, "left"), "workers on both machines")
        launcher.send_signal(how)
        code = launcher.wait(timeout=PATIENCE_SECONDS)
    finally:
        launcher.kill()
        launcher.wait()
    assert code == (-signal.SIGKILL if how is signal.SIGKILL else 130)
    wait_until(lambda: everything_on(network) <= others, "nothing is left on the machines")
    if how is signal.SIGINT:
        with Store.open_existing(tmp_path / "results.db") as store:
            (record,) = store.records()
        assert (record.status, record.reason) == (Status.INTERRUPTED, "interrupted by the user")


@pytest.mark.timeout(120)
def test_doctor_shows_each_machine_and_refuses_a_fleet_with_one_that_is_not_there(network: NetworkOfMachines) -> None:
    def doctor(fleet: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-m", "paceline", "doctor", "--on", fleet]
        return subprocess.run(
            words, capture_output=True, text=True, env={**os.environ, "COLUMNS": "200"}, timeout=100, check=False
        )

    both = doctor("ssh:left,right")
    assert both.returncode == 0, both.stderr
    assert re.search(r"✓ +left +10\.77\.0\.1 .*µs|ms .*right: [0-9.]+ [GM]bit/s, ", both.stdout), both.stdout
    assert re.search(r"✓ +right +10\.77\.0\.2 ", both.stdout), both.stdout
    one = doctor("ssh:left,nobody")
    assert one.returncode == 2
    assert re.search(r"– +nobody +not reached", one.stdout), one.stdout
    assert "machine nobody cannot be reached by ssh" in one.stdout
    assert "1 machine of 2 cannot be used; usable as they are: left" in " ".join(one.stderr.split())


def test_a_machine_that_cannot_be_used_is_refused_in_words(network: NetworkOfMachines, fleet: Fleet) -> None:
    def refusal(**fields: Any) -> str:
        changed = fleet.machines[1].model_copy(update=fields)
        with (
            pytest.raises(UserError) as refused,
            open_machines(fleet.model_copy(update={"machines": (fleet.machines[0], changed)})),
        ):
            raise AssertionError("a machine was reached that is not there")
        return str(refused.value)

    nobody = refusal(host="root@10.77.0.254")
    assert nobody.startswith("machine right cannot be reached by ssh: ssh: connect to host 10.77.0.254 port 22")
    assert nobody.endswith("try: ssh root@10.77.0.254 true")
    assert refusal(python="/nowhere/python").startswith("machine right has no /nowhere/python; install Paceline there")
    assert "machine right has no Paceline in" in refusal(environment={"PYTHONPATH": "/nowhere", "PYTHONHOME": ""},
                                                         python=bare_python())  # fmt: skip
    assert refusal(address="10.9.9.9").startswith("machine right has no address 10.9.9.9; it has 127.0.0.1, 10.77.0.2")


@pytest.mark.soak
@pytest.mark.jax
@pytest.mark.timeout(600)
def test_a_fleet_is_calibrated_by_its_first_machine_and_the_link_between_all(
    network: NetworkOfMachines, tmp_path: Path
) -> None:
    words = ["calibrate", "--on", "ssh:left,right", "--frameworks", "jax"]
    done = subprocess.run(
        [sys.executable, "-m", "paceline", *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "measuring the link between left and right" in done.stderr
    hardware = load_hardware(str(tmp_path / "left.toml"))
    assert hardware.about.startswith("2 machines like left: ")
    assert [curve.framework for curve in hardware.calibrated.steps] == ["jax"]
    assert hardware.outer.bytes_per_second.source.startswith("the slowest TCP transfer between left, right")
    assert hardware.outer.bytes_per_second.value > 1e6


def bare_python() -> str:
    """A Python without Paceline: the one that the virtual environment is made of."""
    return str(Path(sys.executable).resolve())


def once(act: Callable[[Any], None]) -> Callable[[Any], None]:
    """Acts on the first event only."""
    first = threading.Event()

    def act_once(event: Any) -> None:
        if not first.is_set():
            first.set()
            act(event)

    return act_once
