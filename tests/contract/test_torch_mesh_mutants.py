"""The comparison with one worker sees faults that are easily made: each is put in, and the losses must go astray."""

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contract.conftest import WORKLOADS
from contract.test_torch_mesh import CLIP, LOSS_TOLERANCE, TRAINING
from paceline.contract.strategy import on_baseline
from paceline.plan import complete
from paceline.spec import RunSpec

pytestmark = pytest.mark.torch

USUAL = {**WORKLOADS["transformer"], "strategy": "torch-mesh", **TRAINING}
RUNS: dict[str, dict[str, Any]] = {
    "norm of one stage": {**USUAL, "layout": "pipeline=2", "clip": CLIP},
    "unscaled mean": {**USUAL, "layout": "shard=2"},
}


@pytest.fixture(scope="module")
def losses(interpreters: Any) -> dict[str, dict[str, list[float]]]:
    """Of the run of each fault, without it and with it."""
    script = Path(__file__).parent / "mesh_mutants.py"
    command = [str(interpreters["torch"].python), str(script), json.dumps(RUNS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, dict[str, list[float]]] = json.loads(done.stdout)
    return found


@pytest.mark.timeout(300)
@pytest.mark.parametrize("fault", RUNS)
def test_a_fault_is_seen(fault: str, losses: dict[str, dict[str, list[float]]], trained: Any) -> None:
    expected = trained.again(on_baseline(complete(RunSpec.parse(RUNS[fault], "mutant")))).losses
    np.testing.assert_allclose(losses[fault]["none"], expected, rtol=LOSS_TOLERANCE)
    # Without clipping the first loss comes before any update.
    assert np.abs(np.array(losses[fault][fault]) / expected - 1).max() > 10 * LOSS_TOLERANCE
