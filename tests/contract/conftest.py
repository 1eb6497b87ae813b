"""Real runs for the contract: each configuration is trained once per session and shared by the tests.

Also by those that other processes of the session run: what a run came to is kept in a file.
"""

import fcntl
import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.plan import PlannedRun, complete, refusal
from paceline.record import Record, Status
from paceline.runs.devices import lay_out, process_environment
from paceline.runs.launch import launch
from paceline.runs.launchers.local import LocalLauncher
from paceline.runs.probe import probe
from paceline.runs.starters import ForkServers, NewProcess, RunProcess, Starter
from paceline.spec import RunSpec
from paceline.strategies import strategy
from paceline.systems import local_system

STEPS = 20
# For a run and for each of its transfers on a slow and busy machine; only a hang takes longer.
PATIENCE = {"timeout_seconds": 240.0, "collective_timeout_seconds": 240.0}
# Small enough to train in a second, large enough for a loss that falls.
WORKLOADS: dict[str, dict[str, Any]] = {
    "mnist-small": {"workload": "mnist-small", "dataset": "mnist-5k", "train_samples": 1024, "global_batch": 64},
    "transformer": {
        "workload": "transformer", "global_batch": 16, "train_samples": 64,
        "options": {"depth": 2, "width": 32, "heads": 4}, "input_shape": [16], "classes": 32,
    },
}  # fmt: skip


@dataclass(frozen=True)
class Trained:
    record: Record
    weights: dict[str, np.ndarray]
    # What all its processes printed.
    log: str

    @property
    def losses(self) -> np.ndarray:
        return np.array(self.record.losses, dtype=float)


class Trainer:
    """Trains a configuration, or hands out what it came to before; skips what this machine cannot run."""

    def __init__(self, folder: Path, forking: ForkServers) -> None:
        self._folder, self._servers = folder, forking
        self._done: dict[str, Trained] = {}

    def __call__(self, workload: str, **fields: Any) -> Trained:
        return self.again(complete(RunSpec.parse({"steps": STEPS, **WORKLOADS[workload], **fields}, "contract")))

    def launcher(self, spec: RunSpec) -> LocalLauncher:
        return LocalLauncher(self._servers.starter(strategy(spec.strategy)))

    def again(self, spec: RunSpec) -> Trained:
        key = spec.key()
        if key not in self._done:
            reason = refusal(spec, local_system(), probe)
            if reason is not None:
                pytest.skip(reason)
            self._done[key] = self._shared(key, spec)
        return self._done[key]

    def _shared(self, key: str, spec: RunSpec) -> Trained:
        """From the file of the run, which whoever comes first makes."""
        with (self._folder / f"{key}.run").open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            if not (kept := file.read()):
                kept = pickle.dumps(self._train(spec))
                file.write(kept)
        found: Trained = pickle.loads(kept)
        return found

    def _train(self, spec: RunSpec) -> Trained:
        found = self._try(spec)
        # A machine too busy for a run is no fault of the run; what it came to when it ended is never asked twice.
        if found.record.status is Status.TIMED_OUT:
            sys.stderr.write(f"trained anew: {spec.strategy} x{spec.workers} {found.record.reason}\n")
            found = self._try(spec)
        assert found.record.ok, f"{found.record.reason}\n{found.record.log_tail}"
        return found

    def _try(self, spec: RunSpec) -> Trained:
        with tempfile.TemporaryDirectory(prefix="paceline-test-") as place:
            weights = Path(place) / "weights.npz"
            starter = LogKeeper(Path(place), self._servers.starter(strategy(spec.strategy)))
            run = PlannedRun(spec.model_copy(update=PATIENCE), 0)
            record = launch(
                run,
                "contract",
                local_system(),
                lambda _event: None,
                weights_to=weights,
                launcher=LocalLauncher(starter),
            )
            log = "".join(path.read_text(errors="replace") for path in sorted(Path(place).glob("*.log")))
            return Trained(record, dict(np.load(weights)) if weights.exists() else {}, log)


@dataclass(frozen=True)
class LogKeeper:
    """Starts processes and keeps their logs, which go with the folder of their run."""

    folder: Path
    starter: Starter

    def prepare(self, environments: list[dict[str, str]]) -> None:
        self.starter.prepare(environments)

    def cpu_seconds(self) -> float:
        return self.starter.cpu_seconds()

    def start(self, process: NewProcess) -> RunProcess:
        process.log.touch()
        os.link(process.log, self.folder / process.log.name)
        return self.starter.start(process)


@pytest.fixture(autouse=True)
def probing(probing_without_imports: None) -> None:
    """In all tests here."""


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, forking: ForkServers) -> Trainer:
    beside = "PYTEST_XDIST_WORKER" in os.environ
    folder = tmp_path_factory.getbasetemp().parent / "runs" if beside else tmp_path_factory.mktemp("runs")
    folder.mkdir(exist_ok=True)
    return Trainer(folder, forking)


@pytest.fixture(scope="session")
def look(tmp_path_factory: pytest.TempPathFactory, interpreters: Any) -> Callable[[RunSpec], dict[str, Any]]:
    """What one process found that opened the job of a run; each run is looked at once."""
    known: dict[str, dict[str, Any]] = {}

    def found(spec: RunSpec) -> dict[str, Any]:
        if spec.key() not in known:
            process = lay_out(strategy(spec.strategy).needs.roles(spec), local_system().cores, spec.cores_per_worker)[0]
            script = str(Path(__file__).parent / "jax_shards.py")
            command = [interpreters["jax"].python, script, spec.model_dump_json(), str(tmp_path_factory.mktemp("look"))]
            env = process_environment(spec, process, os.environ)
            ended = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=280)
            assert ended.returncode == 0, ended.stderr
            known[spec.key()] = json.loads(ended.stdout.splitlines()[-1])
        return known[spec.key()]

    return found
