"""The application over a results file with exact numbers, asked as a browser would ask."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from paceline.record import Epoch, Rank, Record, Status
from paceline.store import Store
from paceline.web import Option, Site, make_app

OPTIONS = (
    Option("workload", "--workload", "Built-in model(s).", "NAME,..."),
    Option("strategy", "--strategy", "Strategies.", "NAME,..."),
    Option("dataset", "--dataset", "Data set(s).", "NAME,..."),
    Option("workers", "--workers", "Worker counts.", "N,..."),
    Option("knob", "--knob", "Setting of a strategy.", "NAME=VALUE", several=True),
    Option("breakdown", "--breakdown", "Where the time goes.", switch=True),
    Option("db", "--db", "Results file.", "FILE"),
    Option("allocator", "--allocator", "tuned, default.", "NAME"),
)
HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def measured(make_record: Callable[..., Record], make_spec: Callable[..., Any]) -> Callable[..., Record]:
    """A good run that made so many samples per second."""

    def make(rate: float, repeat: int = 0, **fields: Any) -> Record:
        epochs = tuple(
            Epoch(number=number, seconds=1000 / rate, steps=4, samples=1000, cpu_seconds=1.0, train_loss=1.0 / number)
            for number in (1, 2)
        )
        rank = Rank(rank=0, role="worker", cores=(0,), cpu_seconds=1.0, peak_memory_bytes=50_000_000)
        spec = make_spec(**{"dataset": "mnist-5k", **fields})
        return make_record(spec=spec, epochs=epochs, ranks=(rank,), repeat=repeat, losses=(2.0, 1.0))

    return make


@pytest.fixture
def db(path: Path, measured: Callable[..., Record], make_record: Callable[..., Record], make_spec: Any) -> Path:
    """Two studies: one that scales, and one with a hostile name whose only run failed."""
    good = [measured(1000.0 * (1 + 0.6 * (count - 1)) + repeat, repeat, workers=count)
            for count in (1, 2) for repeat in range(3)]  # fmt: skip
    bad = make_record(
        spec=make_spec(workload=HOSTILE, workers=3, dataset="mnist-5k", global_batch=30), status=Status.FAILED,
        reason=f"it broke {HOSTILE}", log_tail=f"log {HOSTILE}", study=HOSTILE,
    )  # fmt: skip
    with Store.open(path) as store:
        for record in (*good, bad):
            store.add(record)
        store.add_to_study("trial", {record.key for record in good})
        store.add_to_study(HOSTILE, {bad.key})
    return path


@pytest.fixture
def site(db: Path) -> Site:
    return Site(db, options=OPTIONS)


@contextmanager
def visiting(site: Site) -> Iterator[TestClient]:
    """Somebody who opened the link that was printed."""
    with TestClient(make_app(site), base_url="http://localhost:8337", follow_redirects=False) as opened:
        opened.get("/", params={"token": site.token})
        yield opened


@pytest.fixture
def client(site: Site) -> Iterator[TestClient]:
    with visiting(site) as opened:
        yield opened
