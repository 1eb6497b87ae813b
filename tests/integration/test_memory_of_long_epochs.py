"""A run holds no more because its epochs are longer."""

import pytest

from paceline.plan import PlannedRun, complete
from paceline.predict.measured import peak_above_framework
from paceline.runs.launch import launch
from paceline.runs.launchers.local import LocalLauncher
from paceline.runs.starters import ForkServers
from paceline.spec import RunSpec
from paceline.strategies import strategy
from paceline.systems import local_system

pytestmark = pytest.mark.torch
pytest.importorskip("torch", reason="PyTorch is not installed")

BATCH, SHORT, LONG = 4, 8, 96
# An allocator does not keep the same in every run.
ROOM = 1.4


@pytest.mark.parametrize(("name", "workers"), [("torch-single", 1), ("torch-layers", 2)])
def test_steps_leave_nothing_behind_that_others_must_go_around(name: str, workers: int, forking: ForkServers) -> None:
    peaks = []
    for steps in (SHORT, LONG):
        fields = {"workload": "transformer", "options": {"depth": 2}, "global_batch": BATCH, "epochs": 1}
        spec = complete(RunSpec(strategy=name, workers=workers, train_samples=BATCH * steps, **fields))
        launcher = LocalLauncher(forking.starter(strategy(name)))
        record = launch(PlannedRun(spec, 0), "long", local_system(), lambda _event: None, launcher=launcher)
        assert record.ok, f"{record.reason}\n{record.log_tail}"
        peaks.append(peak_above_framework(record) or 0.0)
    short, long = peaks
    assert 0 < long < ROOM * short
