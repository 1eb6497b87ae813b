"""What Paceline costs: its steady samples/s against bare hand-written loops, and its start-up against bare imports.

python benchmarks/overhead.py [--quick] [--rounds N] [--only single,ddp,startup]

Both sides of a ratio run in fresh processes on the same cores with the same settings: in turn, where wall clock is
compared, or at the same time on one shared core, where CPU time is; that one is steady on a busy machine too.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from paceline.plan import PlannedRun, complete
from paceline.runs.devices import lay_out, process_environment
from paceline.runs.launch import launch
from paceline.spec import RunSpec
from paceline.store import Store
from paceline.strategies import strategy
from paceline.strategies.base import Context, Process, Rendezvous
from paceline.systems import local_system
from paceline.workloads.layers import Conv, Dense

BARE = Path(__file__).parent / "bare"
# Epochs at the start of every process that count for neither side: memory pools fill, clocks rise.
WARM_UP_EPOCHS = 2
# Both sides train on the same batches from the same weights; a larger difference means that they did unlike work.
LOSS_TOLERANCE = 1e-3
PATIENCE_SECONDS = 1800
# Two processes on one core do not start at the same instant; this many times the epochs keep both busy together.
OVERLAP = 2


@dataclass(frozen=True)
class Loop:
    """One loop to compare. An epoch is short, so that a burst of other load spoils few of them."""

    workload: str
    strategy: str
    workers: int
    batch: int
    train_samples: int
    epochs: int
    target: float

    @property
    def name(self) -> str:
        """As the table has it."""
        return f"{self.strategy} x{self.workers}, {self.workload}, batch {self.batch}"

    def spec(self) -> RunSpec:
        """The run that Paceline makes of it."""
        fields = ("workload", "strategy", "workers", "train_samples", "epochs")
        return complete(RunSpec(global_batch=self.batch, **{name: getattr(self, name) for name in fields}))


SINGLE_TARGET, DDP_TARGET = 0.99, 0.98
LOOPS = {
    "single": (
        Loop("mnist-small", "torch-single", 1, 256, 1280, 20, SINGLE_TARGET),
        Loop("mnist-large", "torch-single", 1, 64, 128, 12, SINGLE_TARGET),
    ),
    "ddp": (
        Loop("mnist-small", "torch-ddp", 2, 256, 1280, 20, DDP_TARGET),
        Loop("mnist-large", "torch-ddp", 2, 64, 128, 12, DDP_TARGET),
    ),
}


@dataclass(frozen=True)
class Speed:
    """Of one side in one round, over its epochs after warm-up."""

    samples_per_second: float
    samples_per_cpu_second: float
    losses: tuple[float, ...]


@dataclass
class Figure:
    """One line of the table: a ratio from every round and where it should be."""

    name: str
    # None for a control, which has nothing to reach.
    target: float | None
    higher_is_better: bool = True
    ratios: list[float] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """Whether the median is on the right side of the target."""
        if self.target is None:
            return ""
        sign = 1 if self.higher_is_better else -1
        reached = [sign * one >= sign * self.target for one in (statistics.median(self.ratios), *self.ratios)]
        word = "yes" if reached[0] else "no"
        return word if len(set(reached)) == 1 else f"{word}, rounds disagree"


def speed(samples: int, epochs: list[tuple[float, float, float]]) -> Speed:
    """From (seconds, CPU seconds, loss) of every epoch.

    Wall clock is that of the lower quartile: other programs only ever make an epoch longer.
    """
    seconds, cpu_seconds, _ = zip(*epochs[WARM_UP_EPOCHS:], strict=True)
    calm = statistics.quantiles(seconds, n=4)[0]
    return Speed(samples / calm, samples / statistics.median(cpu_seconds), tuple(loss for _, _, loss in epochs))


def paceline_speed(loop: Loop) -> Speed:
    """Through the launcher that every run goes through; the numbers are those of the record."""
    record = launch(PlannedRun(loop.spec(), 0), "overhead", local_system(), lambda _event: None)
    if not record.ok:
        raise RuntimeError(f"{loop.name}: {record.reason}\n{record.log_tail}")
    epochs = [(epoch.seconds, epoch.cpu_seconds, float(epoch.train_loss or 0.0)) for epoch in record.epochs]
    return speed(record.epochs[0].samples, epochs)


def start_bare_loop(loop: Loop, data: Path) -> list[subprocess.Popen[bytes]]:
    """The plain script, with the environment and the cores that Paceline would give its processes."""
    spec = loop.spec()
    places = lay_out(strategy(loop.strategy).roles(spec), local_system().cores, spec.cores_per_worker)
    script = "bare_single.py" if loop.workers == 1 else "bare_ddp.py"
    command = [sys.executable, str(BARE / script), str(data), str(loop.epochs), str(loop.batch)]
    port = str(free_port())
    return [start_bare(command, spec, place, port) for place in places]


def bare_speed(loop: Loop, processes: list[subprocess.Popen[bytes]]) -> Speed:
    """Waits for the plain script; an epoch lasts from the first rank's start to the last rank's end, as in a record."""
    try:
        views = [json.loads(process.communicate(timeout=PATIENCE_SECONDS)[0])["epochs"] for process in processes]
    finally:
        for process in processes:
            process.kill()
    epochs = [
        (
            (max(view["ended"] for view in ranks) - min(view["started"] for view in ranks)) / 1e9,
            sum(view["cpu_seconds"] for view in ranks),
            statistics.mean(view["loss"] for view in ranks),
        )
        for ranks in zip(*views, strict=True)
    ]
    return speed(loop.train_samples // loop.batch * loop.batch, epochs)


def start_bare(command: list[str], spec: RunSpec, place: Process, port: str) -> subprocess.Popen[bytes]:
    env = process_environment(spec, place, os.environ) | {
        "RANK": str(place.rank), "WORLD_SIZE": str(place.world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
    }  # fmt: skip
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, place.cores)  # a child inherits it, so that the plain script need not know of it
    try:
        return subprocess.Popen(command, env=env, stdout=subprocess.PIPE)
    finally:
        os.sched_setaffinity(0, mine)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def write_data(loop: Loop, folder: Path) -> Path:
    """The arrays and starting weights that Paceline's processes would use, for a script that cannot ask Paceline."""
    spec = loop.spec()
    context = Context(spec, Process(0, 1, "worker", 0, ()), Rendezvous("", 0, None, folder))
    data, model = context.data, context.model
    assert model.weights is not None
    dense = [layer.units for layer in model.layers if isinstance(layer, Dense)]
    path = folder / f"{loop.workload}.npz"
    np.savez(
        path,
        train_inputs=data.train_inputs, train_targets=data.train_targets,
        test_inputs=data.test_inputs, test_targets=data.test_targets,
        channels=[layer.channels for layer in model.layers if isinstance(layer, Conv)], units=dense[:-1],
        weights=len(model.weights), **{f"weight{n}": array for n, array in enumerate(model.weights.values())},
    )  # fmt: skip
    return path


def check_same_work(loop: Loop, ours: Speed, bare: Speed) -> None:
    for number, (left, right) in enumerate(zip(ours.losses, bare.losses, strict=True), start=1):
        # Rounding differences grow with training, so later epochs tell nothing about the work done.
        if number <= WARM_UP_EPOCHS and abs(left - right) > LOSS_TOLERANCE * abs(right):
            raise RuntimeError(
                f"{loop.name}: loss of epoch {number} is {left:.6f} here and {right:.6f} in the bare loop"
            )


def in_turn(number: int, first: Callable[[], Any], second: Callable[[], Any]) -> tuple[Any, Any]:
    """Both, and every other round in the opposite order, so that drift favours neither."""
    if number % 2:
        later = second()
        return first(), later
    return first(), second()


def progress(figure: Figure, rounds: int) -> str:
    return f"{figure.name}: round {len(figure.ratios)} of {rounds}: {figure.ratios[-1]:.3f}"


def compare_in_turn(loop: Loop, rounds: int, data: Path, say: Callable[[str], None]) -> list[Figure]:
    """One side after the other: samples/s as a user sees them."""
    by_wall = Figure(f"{loop.name}: samples/s", loop.target)
    by_cpu = Figure(f"{loop.name}: samples per CPU second", loop.target)
    for number in range(rounds):
        ours, bare = in_turn(number, lambda: paceline_speed(loop), lambda: bare_alone(loop, data))
        check_same_work(loop, ours, bare)
        by_wall.ratios.append(ours.samples_per_second / bare.samples_per_second)
        by_cpu.ratios.append(ours.samples_per_cpu_second / bare.samples_per_cpu_second)
        say(progress(by_wall, rounds))
    return [by_wall] if loop.workers == 1 else [by_wall, by_cpu]


def compare_side_by_side(loop: Loop, rounds: int, data: Path, say: Callable[[str], None]) -> list[Figure]:
    """Both at once on the one core that each is bound to: whatever else the machine does slows both alike.

    The control is the bare loop against itself: what it strays from 1 is what this machine cannot tell apart now.
    """
    longer = replace(loop, epochs=loop.epochs * OVERLAP)
    figure = Figure(f"{loop.name}: samples per CPU second, side by side", loop.target)
    control = Figure(f"{loop.name}: bare against bare, side by side", None)
    for _ in range(rounds):
        for ratios, other in ((figure.ratios, paceline_speed), (control.ratios, lambda one: bare_alone(one, data))):
            processes = start_bare_loop(longer, data)
            try:
                ours = other(longer)
                bare = bare_speed(longer, processes)
            finally:
                for process in processes:
                    process.kill()
            ratios.append(ours.samples_per_cpu_second / bare.samples_per_cpu_second)
        say(progress(figure, rounds))
    return [figure, control]


def bare_alone(loop: Loop, data: Path) -> Speed:
    return bare_speed(loop, start_bare_loop(loop, data))


def compare_loop(loop: Loop, rounds: int, folder: Path, say: Callable[[str], None]) -> list[Figure]:
    data = write_data(loop, folder)
    figures = compare_in_turn(loop, rounds, data, say)
    # Several workers wait for each other, and what they wait for would be the other side.
    return figures if loop.workers > 1 else figures + compare_side_by_side(loop, rounds, data, say)


def run_timed(command: list[str]) -> float:
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return time.perf_counter() - started


def first_step_seconds(folder: Path, number: int) -> float:
    """From starting the tool to the end of the first training step, by wall clock.

    The tool stamps `started_at` (milliseconds, wall clock) as it sets out to launch the run, and `startup` counts from
    the start of the worker to the end of its first step. Only making the run's folder and writing its orders lies
    between the two, a few milliseconds; the end of the tool, after evaluation and storing, is not part of it.
    """
    results = folder / f"startup-{number}.db"
    started = time.time()
    run_timed(
        [sys.executable, "-m", "paceline", "run", "--workload", "mnist-small", "--strategy", "torch-single",
         "--workers", "1", "--global-batch", "256", "--steps", "1", "--db", str(results)]
    )  # fmt: skip
    with Store.open_existing(results) as store:
        record = store.records()[-1]
    if record.startup is None:
        raise RuntimeError(f"the start-up run did not train: {record.reason}")
    return datetime.fromisoformat(record.started_at).timestamp() - started + record.startup.total_seconds


def compare_startup(rounds: int, folder: Path, say: Callable[[str], None]) -> list[Figure]:
    first_step = Figure("first step of paceline run / import torch", 1.6, higher_is_better=False)
    help_text = Figure("paceline --help / import typer, rich", 2.5, higher_is_better=False)
    for number in range(-1, rounds):
        ours, bare = in_turn(
            number,
            lambda n=number: first_step_seconds(folder, n),
            lambda: run_timed([sys.executable, "-c", "import torch"]),
        )
        asked, needed = in_turn(
            number,
            lambda: run_timed([sys.executable, "-m", "paceline", "--help"]),
            lambda: run_timed([sys.executable, "-c", "import typer, rich"]),
        )
        if number >= 0:  # the round before reads every file from disk once, for both sides
            first_step.ratios.append(ours / bare)
            help_text.ratios.append(asked / needed)
            say(progress(first_step, rounds))
    return [first_step, help_text]


def show(figures: list[Figure]) -> None:
    table = Table("figure", "median", "range", "target", "met")
    for figure in figures:
        sign = "≥" if figure.higher_is_better else "≤"
        table.add_row(
            figure.name,
            f"{statistics.median(figure.ratios):.3f}",
            f"{min(figure.ratios):.3f} to {max(figure.ratios):.3f}",
            f"{sign} {figure.target:.2f}" if figure.target is not None else "",
            figure.verdict,
        )
    Console().print(table)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, help="pairs of fresh processes for each figure (7, with --quick 2)")
    parser.add_argument("--quick", action="store_true", help="few rounds of few epochs: that it works, not how fast")
    parser.add_argument("--only", default="single,ddp,startup", help="parts, separated by commas: %(default)s")
    return parser.parse_args()


def main() -> None:
    asked = options()
    say = Console(stderr=True, highlight=False).print
    rounds = asked.rounds or (2 if asked.quick else 7)
    parts, figures = asked.only.split(","), []
    say(f"{rounds} rounds for each figure; the first takes some seconds")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for loop in (loop for part in parts for loop in LOOPS.get(part, ())):
            chosen = replace(loop, epochs=loop.epochs // 2) if asked.quick else loop
            figures += compare_loop(chosen, rounds, folder, say)
        if "startup" in parts:
            figures += compare_startup(rounds, folder, say)
    show(figures)


if __name__ == "__main__":
    main()
