"""Fixtures of the fast loop: makers of specs and records, and a guard that keeps frameworks out of it."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import paceline
from paceline.record import Record, Status
from paceline.spec import RunSpec
from paceline.store import Store
from paceline.systems import Gpu, System

FRAMEWORKS = ("torch", "tensorflow", "jax")
MNIST_BESIDE_PROJECT = Path(__file__).parents[3] / "shared" / "data" / "mnist"


@pytest.fixture(autouse=True)
def no_framework_is_imported() -> Iterator[None]:
    before = {name for name in FRAMEWORKS if name in sys.modules}
    yield
    assert {name for name in FRAMEWORKS if name in sys.modules} == before, "a unit test imported a framework"


@pytest.fixture
def make_spec() -> Callable[..., RunSpec]:
    """A run of the fake strategy; whatever is given takes the place of what it has."""

    def make(**fields: Any) -> RunSpec:
        lengths = {} if {"epochs", "steps"} & fields.keys() else {"epochs": 2}
        batches = {} if {"global_batch", "local_batch"} & fields.keys() else {"global_batch": 256}
        return RunSpec(**{"strategy": "fake", **lengths, **batches, **fields})

    return make


@pytest.fixture
def make_record(make_spec: Callable[..., RunSpec]) -> Callable[..., Record]:
    """A finished run; whatever is given takes the place of what it has."""

    def make(**fields: Any) -> Record:
        base = {
            "study": "trial",
            "spec": make_spec(),
            "repeat": 0,
            "status": Status.OK,
            "started_at": "2024-05-01T12:00:00.000+00:00",
            "wall_seconds": 1.5,
            "environment": {"python": "3.12.1", "cores": [0, 1]},
        }
        return Record(**{**base, **fields})

    return make


@pytest.fixture
def make_system() -> Callable[..., System]:
    """A machine with two cores, PyTorch and as many GPUs as asked for."""

    def make(gpus: int = 0, frameworks: tuple[str, ...] = ("torch",)) -> System:
        return System(
            cpu="a processor",
            cores=(0, 1),
            memory_bytes=8 << 30,
            gpus=(Gpu("a card", 16 << 30),) * gpus,
            frameworks=dict.fromkeys(frameworks, "1.0"),
        )

    return make


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a results file may be made."""
    return tmp_path / "results.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    """A new results file, open."""
    with Store.open(path) as opened:
        yield opened


@pytest.fixture
def child_environment() -> dict[str, str]:
    """Environment variables with which a child process finds this very Paceline."""
    return {**os.environ, "PYTHONPATH": str(Path(paceline.__file__).parents[1])}


@pytest.fixture(scope="session")
def mnist_files() -> Path:
    """The folder of the four real MNIST files."""
    folder = Path(os.environ.get("PACELINE_TEST_MNIST") or MNIST_BESIDE_PROJECT)
    if not (folder / "train-images-idx3-ubyte.gz").is_file():
        pytest.skip("the MNIST files are not here; name their folder with PACELINE_TEST_MNIST")
    return folder
