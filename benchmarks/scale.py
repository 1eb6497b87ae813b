"""Whether Paceline stays small and quick when there is much to do: many runs in one process, many records in one file.

python benchmarks/scale.py [--process-runs 200] [--records 10000] [--with-report]

The runs are real ones of the `fake` strategy, each in fresh processes (about a third of a second each); the records are
one such run's record under many configurations, 2.5 of each. What each command takes is its CPU seconds, so that other
programs on the machine change little, and its peak memory. Growth is what ten times the records take, start-up aside:
the last line says whether all of it is within `MOST_GROWTH`. Nothing is extrapolated.
"""

import argparse
import gc
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
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
# Of a file with so few records a command takes what it takes to start.
FEW_RECORDS = 10
# Ten times the records may take so many times as long.
MORE_RECORDS, MOST_GROWTH = 10, 12.0
BATCHES, WORKERS = (64, 128, 192, 256, 320, 384, 448, 512), (1, 2, 4, 8, 16)
PAGES = ("/", "/results", "/figures")


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
    """One measured piece of work: CPU seconds, and peak memory."""

    name: str
    records: int
    seconds: float
    peak_bytes: int


def fake_study(runs: int) -> Study:
    fixed = {"strategy": "fake", "workload": "mlp", "global_batch": 64, "steps": STEPS, "workers": 2}
    return Study(name="scale", repeats=runs, fixed=fixed)


def make_runs(count: int, store: Store, bar: Progress) -> list[int]:
    """Real runs through the same code as the command line; memory after each."""
    memory = Memory(bar)
    execute(plan_study(fake_study(count), store), store, memory)
    return memory.after_run


def varied(record: Record, count: int) -> Iterator[Record]:
    """Records of configurations that differ in batch, workers and seed, two or three repeats of each."""
    chance, configurations = random.Random(0), max(1, count * 2 // 5)
    for number in range(count):
        repeat, place = divmod(number, configurations)
        seed, rest = divmod(place, len(BATCHES) * len(WORKERS))
        fields = {
            "seed": seed, "global_batch": BATCHES[rest % len(BATCHES)], "workers": WORKERS[rest // len(BATCHES)],
        }  # fmt: skip
        slower = chance.uniform(0.9, 1.1)
        epochs = tuple(epoch.model_copy(update={"seconds": epoch.seconds * slower}) for epoch in record.epochs)
        spec = record.spec.model_copy(update=fields)
        yield record.model_copy(update={"spec": spec, "repeat": repeat, "epochs": epochs, "id": None})


def make_file(record: Record, count: int, path: Path, bar: Progress) -> Stretch:
    """Each record in a transaction of its own, as runs leave them."""
    started, keys = time.process_time(), set()
    with Store.open(path) as store:
        for copy in bar.track(varied(record, count), total=count, description=f"storing {count:,}"):
            store.add(copy)
            keys.add(copy.key)
        store.add_to_study("scale", keys)
    return Stretch("store", count, time.process_time() - started, resident_bytes())


def command(name: str, words: Sequence[str], count: int) -> Stretch:
    """A command in a process of its own."""
    with subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(words)} ended with {process.returncode}")
    # Linux counts the peak in kibibytes.
    return Stretch(name, count, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)


def commands(path: Path, count: int, with_report: bool) -> list[Stretch]:
    """What people ask of a results file."""
    db = ["--db", str(path)]
    tool = ["-m", "paceline"]
    stretches = [
        command("show", [*tool, "show", *db], count),
        command("show --json", [*tool, "show", "--json", *db], count),
    ]
    if with_report:
        out = ["--out", str(path.with_suffix(".html"))]
        stretches.append(command("report", [*tool, "report", *db, *out], count))
    return stretches


@contextmanager
def stretch(name: str, count: int, found: list[Stretch]) -> Iterator[None]:
    started = time.process_time()
    yield
    found.append(Stretch(name, count, time.process_time() - started, resident_bytes()))


def pages(path: Path, record: Record, count: int) -> list[Stretch]:
    """Pages of `paceline serve`: first after start, then when nothing changed, and after one more record."""
    from starlette.testclient import TestClient

    from paceline.web import Site, make_app
    from paceline.web.guard import COOKIE

    found: list[Stretch] = []
    site = Site(path)
    with TestClient(make_app(site), base_url="http://localhost:8337") as client:
        client.cookies.set(f"{COOKIE}_8337", site.token)
        for moment in ("first", "again", "after a record"):
            if moment == "after a record":
                with Store.open(path) as store:
                    store.add(record.model_copy(update={"repeat": 99, "id": None}))
            for page in PAGES:
                with stretch(f"serve {page}, {moment}", count, found):
                    if client.get(page).status_code != 200:
                        raise RuntimeError(f"{page} could not be served")
    return found


def show_memory(after_run: list[int], seconds: float) -> None:
    table = Table("after run", "memory of the tool", "since run 1", title=f"{len(after_run):,} runs in {seconds:.1f} s")
    middle = len(after_run) // 2
    for number in sorted({0, middle, len(after_run) - 1}):
        held = after_run[number]
        table.add_row(f"{number + 1:,}", f"{held / MEBIBYTE:.1f} MiB", f"{(held - after_run[0]) / MEBIBYTE:+.2f} MiB")
    Console().print(table)


def show_growth(few: list[Stretch], fewer: list[Stretch], all_records: list[Stretch]) -> bool:
    """Prints what each piece of work takes, and whether it grows in proportion."""
    table = Table("work", "records", "CPU seconds", "peak memory", "growth", "bytes a record")
    start = {work.name: work for work in few}
    well = True
    for less, more in zip(fewer, all_records, strict=True):
        before = start.get(less.name)
        start_seconds, start_bytes = (before.seconds, before.peak_bytes) if before else (0.0, less.peak_bytes)
        # Where nearly all is start-up, there is nothing to tell growth from.
        growth = (more.seconds - start_seconds) / max(less.seconds - start_seconds, 0.02)
        well = well and growth <= MOST_GROWTH
        each = (more.peak_bytes - start_bytes) / more.records
        for work, times, held in ((less, "", ""), (more, f"{growth:.1f}x", f"{each:,.0f}" if before else "")):
            peak = f"{work.peak_bytes / MEBIBYTE:.0f} MiB"
            table.add_row(work.name, f"{work.records:,}", f"{work.seconds:.2f}", peak, times, held)
    Console().print(table)
    return well


def measured(record: Record, count: int, folder: Path, with_report: bool, bar: Progress) -> list[Stretch]:
    """Everything for a file with so many records."""
    path = folder / f"{count}.db"
    stored = make_file(record, count, path, bar)
    task = bar.add_task(f"reading {count:,}", total=None)
    try:
        return [stored, *commands(path, count, with_report), *pages(path, record, count)]
    finally:
        bar.remove_task(task)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--process-runs", type=int, default=200, help="real fake runs (default 200; try 10000)")
    parser.add_argument("--records", type=int, default=10_000, help="records in the file (default 10000; try 100000)")
    parser.add_argument("--with-report", action="store_true", help="also the report, which draws every figure")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, Progress(console=Console(stderr=True)) as bar:
        folder = Path(name)
        with Store.open(folder / "runs.db") as store:
            started = time.perf_counter()
            after_run = make_runs(max(1, asked.process_runs), store, bar)
            seconds = time.perf_counter() - started
            record = store.records(with_steps=True)[0]
        # What the first pages of a process import is none of the time of any size.
        make_file(record, FEW_RECORDS, folder / "first.db", bar)
        pages(folder / "first.db", record, FEW_RECORDS)
        sizes = (FEW_RECORDS, asked.records // MORE_RECORDS, asked.records)
        few, fewer, all_records = (measured(record, size, folder, asked.with_report, bar) for size in sizes)
    show_memory(after_run, seconds)
    well = show_growth(few, fewer, all_records)
    print(f"ten times the records take at most {MOST_GROWTH:.0f} times as long: {'yes' if well else 'NO'}")
    sys.exit(not well)


if __name__ == "__main__":
    main()
