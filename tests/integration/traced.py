"""Makes one instrumented run and prints its breakdown as JSON; a script, so that it can be run inside a namespace.

`python traced.py '{"strategy": "torch-ddp", ...}'`
"""

import json
import sys
from dataclasses import asdict
from typing import Any

from paceline.plan import PlannedRun, complete
from paceline.runs.launch import launch
from paceline.runs.launchers.local import LocalLauncher
from paceline.runs.starters import ForkServers, fork_servers
from paceline.spec import ModelFile, RunSpec
from paceline.strategies import strategy
from paceline.systems import local_system

# A model whose forward pass takes longer in the last of two ranks.
LATE = """
import time
import torch
from torch import nn

class Late(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, x):
        if self.training and torch.distributed.is_initialized() and torch.distributed.get_rank() == 1:
            time.sleep({late})
        return self.layers(x)

def build():
    return Late()
"""


def breakdown(fields: dict[str, Any], forking: ForkServers) -> list[dict[str, float]]:
    """Of every rank of a run with these fields."""
    if "model" in fields:
        fields = {**fields, "model": ModelFile.from_text(fields["model"])}
    spec = complete(RunSpec.model_validate({**fields, "instrumented": True}))
    start = forking.starter(strategy(spec.strategy))
    record = launch(PlannedRun(spec, 0), "traced", local_system(), lambda _event: None, launcher=LocalLauncher(start))
    if not record.ok:  # Not an assertion: a run that fails is not made anew.
        raise RuntimeError(f"{record.reason}\n{record.log_tail}")
    return [asdict(part) for part in record.breakdown]


if __name__ == "__main__":
    with fork_servers() as started:
        print(json.dumps(breakdown(json.loads(sys.argv[1]), started)))  # noqa: T201
