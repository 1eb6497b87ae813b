"""Run after run ends without a word: no abort after the work is done, nothing leaked, nothing left in shared memory.

`PACELINE_EXITS=50 make soak` makes 50 runs of each strategy in a row; without it, a few. Contract tests hold every
strategy's usual run to the same words once.
"""

import os
from pathlib import Path

import pytest

from contract.test_usual_runs import UNCLEAN
from paceline.plan import PlannedRun, complete, refusal
from paceline.runs.launch import launch
from paceline.runs.probe import probe
from paceline.runs.processes import Inherited, RunProcess
from paceline.runs.template import Templates
from paceline.spec import RunSpec
from paceline.strategies import Strategy, strategies
from paceline.systems import local_system

RUNS = int(os.environ.get("PACELINE_EXITS", "3"))


def short_run(chosen: Strategy) -> RunSpec:
    fields = {"strategy": chosen.name, "workers": chosen.fixed_workers or 2, "global_batch": 32, "train_samples": 128}
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


@pytest.mark.timeout(60 + 120 * RUNS)
@pytest.mark.parametrize("chosen", HERE)
def test_many_runs_in_a_row_end_clean(chosen: Strategy, made: Templates, tmp_path: Path) -> None:
    shared_before, logs = set(Path("/dev/shm").iterdir()), list[Path]()

    def start(folder: Path, rank: int, env: dict[str, str], _log: Path, inherited: Inherited) -> RunProcess:
        # The run's folder goes with the run; its logs are wanted here.
        logs.append(tmp_path / f"{len(logs)}.log")
        logs[-1].touch()
        (folder / f"rank-{rank}.log").touch()
        return made.starter(chosen)(folder, rank, env, logs[-1], inherited)

    for number in range(RUNS):
        record = launch(
            PlannedRun(short_run(chosen), number), "exits", local_system(), lambda _event: None, start=start
        )
        assert record.ok, f"run {number + 1}: {record.reason}"
    words = "".join(log.read_text(errors="replace") for log in logs)
    assert len(logs) == RUNS * sum(role.processes for role in chosen.roles(short_run(chosen)))
    assert not UNCLEAN.search(words), words
    assert set(Path("/dev/shm").iterdir()) <= shared_before
