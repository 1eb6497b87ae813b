"""Records with exact numbers, made by hand."""

from typing import Any

import pytest

from paceline.record import Epoch, Finding, Rank, Record, Status
from paceline.spec import RunSpec


@pytest.fixture
def make_record() -> Any:
    """A record of a run that made `rate` samples/s in its last epoch and half of that in its first."""

    def make(rate: float | None = 1000.0, repeat: int = 0, findings: tuple[str, ...] = (), **fields: Any) -> Record:
        outcome = {name: fields.pop(name) for name in ("status", "reason", "environment") if name in fields}
        batch = {} if "local_batch" in fields else {"global_batch": 100}
        spec = RunSpec(**{"strategy": "fake", "dataset": "mnist-5k", "epochs": 2, **batch, **fields})
        shares = ((1, 0.5), (2, 1.0)) if rate else ()
        epochs = [_epoch(number, 1000 / ((rate or 0) * share)) for number, share in shares]
        rank = Rank(rank=0, role="worker", cores=(0,), cpu_seconds=1.0, peak_memory_bytes=1000)
        told = [Finding(code=code, text="text", hint="hint") for code in findings]
        values = {
            "study": "s", "spec": spec, "repeat": repeat, "started_at": "2026-01-01T00:00:00", "wall_seconds": 3.0,
            "epochs": tuple(epochs), "ranks": (rank,), "findings": tuple(told),
            "status": Status.OK if rate else Status.FAILED,
        }  # fmt: skip
        return Record(**{**values, **outcome})

    return make


def _epoch(number: int, seconds: float) -> Epoch:
    return Epoch(
        number=number, seconds=seconds, steps=10, samples=1000, cpu_seconds=5.0, train_loss=0.5, test_accuracy=0.9
    )
