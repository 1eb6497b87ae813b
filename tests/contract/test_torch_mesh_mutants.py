"""The comparison with one worker sees faults that are easily made: each is put in, and the losses must go astray."""

import json
import subprocess
import sys
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


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("fault", "fields"),
    [
        ("norm of one stage", {"layout": "pipeline=2", "clip": CLIP}),
        pytest.param("unscaled mean", {"layout": "shard=2"}, marks=pytest.mark.soak),
    ],
)
def test_a_fault_is_seen(fault: str, fields: dict[str, Any], trained: Any) -> None:
    run = {**WORKLOADS["transformer"], "strategy": "torch-mesh", **TRAINING, **fields}
    script = Path(__file__).parent / "mesh_mutants.py"
    command = [sys.executable, str(script), json.dumps(run), "none", fault]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    losses = json.loads(done.stdout)
    expected = trained.again(on_baseline(complete(RunSpec.parse(run, "mutant")))).losses
    np.testing.assert_allclose(losses["none"], expected, rtol=LOSS_TOLERANCE)
    # Without clipping the first loss comes before any update.
    assert np.abs(np.array(losses[fault]) / expected - 1).max() > 10 * LOSS_TOLERANCE
