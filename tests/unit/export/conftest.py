"""A finished and a failed run with numbers that can be checked by head."""

from collections.abc import Callable

import pytest

from paceline.record import Epoch, Finding, Rank, Record, Startup, Status


@pytest.fixture
def good(make_record: Callable[..., Record]) -> Record:
    """Two steps of two ranks in one epoch."""
    return make_record(
        study="a study/with <odd> name",
        started_at="1970-01-01T00:16:40.000+00:00",
        startup=Startup(launch_seconds=0.5, import_seconds=0.5, build_seconds=0.5, first_step_seconds=0.5),
        epochs=(
            Epoch(number=1, seconds=1.0, steps=2, samples=512, cpu_seconds=1.0, train_loss=1.5, test_accuracy=0.5),
        ),
        ranks=(Rank(rank=0, role="worker", cores=(0,), cpu_seconds=1.0, peak_memory_bytes=1000),),
        losses=(2.0, None),
        step_seconds={0: (0.25, 0.5), 1: (0.5, 0.25)},
        findings=(Finding(code="other_load", text="busy", hint="close programs"),),
    )


@pytest.fixture
def bad(make_record: Callable[..., Record]) -> Record:
    """A run that broke before its first step."""
    return make_record(status=Status.FAILED, reason="it broke", repeat=1)
