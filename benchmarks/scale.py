"""Whether Paceline stays small and quick when there is much to do: many runs in one process, many records in one file.

python benchmarks/scale.py [--process-runs 200] [--records 10000]

The runs are real ones of the `fake` strategy, each in fresh processes (about a third of a second each); the records are
one such run's record under many configurations. Nothing is extrapolated.
"""

import argparse
import gc
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from paceline.execute import Listener, execute, plan_study
from paceline.plan import Plan, PlannedRun
from paceline.record import Record
from paceline.store import Store
from paceline.study import Study

MEBIBYTE = 1 << 20
STEPS = 50
REPEATS = 5


def resident_bytes() -> int:
    """Memory of this process, after a collection so that only what is held counts."""
    gc.collect()
    return int(psutil.Process(os.getpid()).memory_info().rss)


@dataclass
class Memory(Listener):
    """A listener that notes the tool's memory after every run."""

    bar: Progress
    after_run: list[int] = field(default_factory=list)

    def planned(self, plan: Plan) -> None:
        """The length of the bar."""
        self._task = self.bar.add_task("fake runs", total=len(plan.to_run))

    def started(self, run: PlannedRun, number: int) -> None:
        """Nothing to note."""

    def ended(self, record: Record) -> None:
        """One more; a run that went wrong would make the measurement worthless."""
        if not record.ok:
            raise RuntimeError(f"a fake run ended as {record.status}: {record.reason}")
        self.after_run.append(resident_bytes())
        self.bar.advance(self._task)


@dataclass(frozen=True)
class Stretch:
    """One measured piece of work."""

    name: str
    seconds: float
    start_bytes: int
    end_bytes: int


@contextmanager
def stretch(name: str, found: list[Stretch]) -> Iterator[None]:
    before, started = resident_bytes(), time.perf_counter()
    yield
    seconds = time.perf_counter() - started
    found.append(Stretch(name, seconds, before, resident_bytes()))


def fake_study(runs: int) -> Study:
    fixed = {"strategy": "fake", "workload": "mlp", "global_batch": 8, "steps": STEPS}
    return Study(name="scale", repeats=runs, fixed=fixed)


def make_runs(count: int, store: Store, bar: Progress) -> list[int]:
    """Real runs through the same code as the command line; memory after each."""
    memory = Memory(bar)
    execute(plan_study(fake_study(count), store), store, memory)
    return memory.after_run


def varied(record: Record, count: int) -> Iterator[Record]:
    """Records of configurations that differ in batch and seed, a few repeats of each."""
    for number in range(count):
        configuration, repeat = divmod(number, REPEATS)
        fields = {"seed": configuration, "global_batch": 8 * (1 + configuration % 8)}
        yield record.model_copy(update={"spec": record.spec.model_copy(update=fields), "repeat": repeat, "id": None})


def store_and_read(record: Record, count: int, path: Path, bar: Progress) -> list[Stretch]:
    """Each record in a transaction of its own, as runs leave them; then all of them back, as a table needs them."""
    found: list[Stretch] = []
    with Store.open(path) as store:
        with stretch(f"store {count:,} records", found):
            for one in bar.track(varied(record, count), total=count, description="storing"):
                store.add(one)
        bar.add_task("reading", total=None)
        with stretch(f"read {count:,} records", found):
            records = store.records()
            if len(records) != count:
                raise RuntimeError(f"{count} records were stored and {len(records)} came back")
        with stretch(f"list what is done of {count:,}", found):
            store.done()
    return found


def show_memory(after_run: list[int], seconds: float) -> None:
    table = Table("after run", "memory of the tool", "since run 1", title=f"{len(after_run):,} runs in {seconds:.1f} s")
    middle = len(after_run) // 2
    for number in sorted({0, middle, len(after_run) - 1}):
        held = after_run[number]
        table.add_row(f"{number + 1:,}", f"{held / MEBIBYTE:.1f} MiB", f"{(held - after_run[0]) / MEBIBYTE:+.2f} MiB")
    Console().print(table)


def show_stretches(found: list[Stretch], file_bytes: int) -> None:
    table = Table("work", "seconds", "memory growth", title=f"results file: {file_bytes / MEBIBYTE:.1f} MiB")
    for one in found:
        growth = (one.end_bytes - one.start_bytes) / MEBIBYTE
        table.add_row(one.name, f"{one.seconds:.2f}", f"{growth:+.1f} MiB")
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--process-runs", type=int, default=200, help="real fake runs (default 200; try 10000)")
    parser.add_argument("--records", type=int, default=10_000, help="records to store and read (default 10000)")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, Progress(console=Console(stderr=True)) as bar:
        folder = Path(name)
        with Store.open(folder / "runs.db") as store:
            started = time.perf_counter()
            after_run = make_runs(max(1, asked.process_runs), store, bar)
            seconds = time.perf_counter() - started
            record = store.records(with_steps=True)[0]
        path = folder / "records.db"
        found = store_and_read(record, asked.records, path, bar)
        file_bytes = path.stat().st_size
    show_memory(after_run, seconds)
    show_stretches(found, file_bytes)


if __name__ == "__main__":
    main()
