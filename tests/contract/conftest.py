"""Real runs for the contract: each configuration is trained once per session and shared by the tests."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.plan import PlannedRun, complete, refusal
from paceline.record import Record
from paceline.runs.launch import launch
from paceline.runs.launchers.local import LocalLauncher
from paceline.runs.probe import probe
from paceline.runs.starters import fork_servers
from paceline.spec import RunSpec
from paceline.strategies import strategy
from paceline.systems import local_system

STEPS = 20
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

    @property
    def losses(self) -> np.ndarray:
        return np.array(self.record.losses, dtype=float)


@pytest.fixture(scope="session")
def server_stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


class Trainer:
    """Trains a configuration, or hands out what it came to before; skips what this machine cannot run."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._done: dict[str, Trained] = {}
        self._servers = stack.enter_context(fork_servers())

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
            weights_file, run = self._folder / f"{key}.npz", PlannedRun(spec, 0)
            record = launch(
                run, "contract", local_system(), lambda _event: None,
                weights_to=weights_file, launcher=self.launcher(spec),
            )  # fmt: skip
            assert record.ok, f"{record.reason}\n{record.log_tail}"
            self._done[key] = Trained(record, dict(np.load(weights_file)) if weights_file.exists() else {})
        return self._done[key]


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, server_stack: ExitStack) -> Trainer:
    return Trainer(tmp_path_factory.mktemp("weights"), server_stack)
