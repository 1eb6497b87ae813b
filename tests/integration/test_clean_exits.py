"""Run after run ends without a word: no abort after the work is done, nothing leaked, nothing left in shared memory.

`PACELINE_EXITS=50 make soak` makes 50 runs of each strategy in a row; without it, a few. Contract tests hold every
strategy's usual run to the same words once.
"""

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from contract.test_usual_runs import UNCLEAN
from paceline.plan import PlannedRun, complete, refusal
from paceline.runs.launch import launch
from paceline.runs.launchers.local import LocalLauncher
from paceline.runs.probe import probe
from paceline.runs.starters import ForkServers, NewProcess, RunProcess, Starter
from paceline.spec import RunSpec
from paceline.strategies import Strategy, strategies
from paceline.systems import local_system

RUNS = int(os.environ.get("PACELINE_EXITS", "3"))


def short_run(chosen: Strategy) -> RunSpec:
    fields = {
        "strategy": chosen.name,
        "workers": chosen.needs.fixed_workers or 2,
        "global_batch": 32,
        "train_samples": 128,
    }
    return complete(RunSpec.model_validate({**fields, "steps": 3, "timeout_seconds": 300}))


# Processes that talk in a ring, to a server, and as devices of one process.
USUAL = ("torch-ddp", "tf-ps", "jax-data")
HERE = [
    pytest.param(
        chosen, id=chosen.name,
        marks=[getattr(pytest.mark, chosen.framework)] + [pytest.mark.soak] * (chosen.name not in USUAL),
    )
    for chosen in strategies().values()
    if chosen.framework is not None and refusal(short_run(chosen), local_system(), probe) is None
]  # fmt: skip


@dataclass
class LogKeeper:
    """Starts processes that log into another folder: the run's folder goes with the run."""

    starter: Starter
    folder: Path
    logs: list[Path] = field(default_factory=list)

    def prepare(self, environments: list[dict[str, str]]) -> None:
        self.starter.prepare(environments)

    def cpu_seconds(self) -> float:
        return self.starter.cpu_seconds()

    def start(self, process: NewProcess) -> RunProcess:
        self.logs.append(self.folder / f"{len(self.logs)}.log")
        self.logs[-1].touch()
        process.log.touch()
        return self.starter.start(replace(process, log=self.logs[-1]))


@pytest.mark.timeout(60 + 30 * RUNS)
@pytest.mark.parametrize("chosen", HERE)
def test_many_runs_in_a_row_end_clean(chosen: Strategy, forking: ForkServers, tmp_path: Path) -> None:
    shared_before, keeper = set(Path("/dev/shm").iterdir()), LogKeeper(forking.starter(chosen), tmp_path)
    for number in range(RUNS):
        run, launcher = PlannedRun(short_run(chosen), number), LocalLauncher(keeper)
        record = launch(run, "exits", local_system(), lambda _event: None, launcher=launcher)
        assert record.ok, f"run {number + 1}: {record.reason}"
    words = "".join(log.read_text(errors="replace") for log in keeper.logs)
    assert len(keeper.logs) == RUNS * sum(role.processes for role in chosen.needs.roles(short_run(chosen)))
    assert not UNCLEAN.search(words), words
    assert set(Path("/dev/shm").iterdir()) <= shared_before
