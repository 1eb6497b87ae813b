"""Kill -9 of any process of any strategy: the run ends as failed, names the process, and leaves nothing behind."""

import os
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from paceline.plan import PlannedRun, complete, refusal
from paceline.record import Status
from paceline.runs.launch import launch
from paceline.runs.launchers.local import LocalLauncher
from paceline.runs.probe import probe
from paceline.runs.starters import ForkServers, NewProcess, RunProcess, Starter
from paceline.runs.wire import EpochEvent, RunNews, StepEvent
from paceline.spec import RunSpec
from paceline.strategies import Strategy, strategies
from paceline.systems import local_system

# For a run to start and to end after the kill, on a slow and busy machine.
PATIENCE_SECONDS = 150.0


def long_run(chosen: Strategy) -> RunSpec:
    """Far more steps than are made before the kill, and a collective timeout far longer than the test."""
    fields = {
        "strategy": chosen.name,
        "workers": chosen.needs.fixed_workers or 2,
        "global_batch": 64,
        "train_samples": 512,
    }
    timeout = {"collective_timeout_seconds": 4 * PATIENCE_SECONDS}
    return complete(RunSpec.model_validate({**fields, "steps": 100_000, **timeout}))


def victims() -> list[Any]:
    """The last process of every role of every strategy that runs here."""
    found = []
    for chosen in strategies().values():
        if chosen.framework is None or refusal(long_run(chosen), local_system(), probe) is not None:
            continue
        rank = -1
        for role in chosen.needs.roles(long_run(chosen)):
            rank += role.processes
            marks = [getattr(pytest.mark, chosen.framework)]
            # Where one process is all of a run, what it computes makes no difference to its death.
            alone = sum(role.processes for role in chosen.needs.roles(long_run(chosen))) == 1
            marks += [pytest.mark.soak] * (alone and chosen.name not in ("torch-single", "tf-mirrored", "jax-data"))
            found.append(pytest.param(chosen, rank, role.name, id=f"{chosen.name}-{role.name}", marks=marks))
    return found


@dataclass
class PidKeeper:
    """Starts processes and keeps their numbers."""

    starter: Starter
    pids: list[int] = field(default_factory=list)

    def prepare(self, environments: list[dict[str, str]]) -> None:
        self.starter.prepare(environments)

    def cpu_seconds(self) -> float:
        return self.starter.cpu_seconds()

    def start(self, process: NewProcess) -> RunProcess:
        started = self.starter.start(process)
        self.pids.append(started.pid)
        return started


@pytest.mark.parametrize(("chosen", "rank", "role"), victims())
def test_a_killed_process_ends_the_run_and_is_named(
    chosen: Strategy, rank: int, role: str, forking: ForkServers
) -> None:
    shared_before, keeper = set(Path("/dev/shm").iterdir()), PidKeeper(forking.starter(chosen))

    def kill_on_third_news(event: RunNews, news: list[int] = [0]) -> None:  # noqa: B006
        news[0] += isinstance(event, StepEvent | EpochEvent)
        if news[0] == 3:
            os.kill(keeper.pids[rank], signal.SIGKILL)

    run, launcher = PlannedRun(long_run(chosen), 0), LocalLauncher(keeper)
    record = launch(run, "faults", local_system(), kill_on_third_news, launcher=launcher)
    assert record.status is Status.FAILED
    assert record.reason == f"rank {rank} ({role}) was killed by SIGKILL"
    # Far less than the collective timeout that the others would wait for.
    assert record.wall_seconds < PATIENCE_SECONDS
    assert not [pid for pid in keeper.pids if Path(f"/proc/{pid}").exists()]
    assert set(Path("/dev/shm").iterdir()) <= shared_before
