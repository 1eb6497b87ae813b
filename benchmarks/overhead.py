"""What Paceline costs: its steady samples/s against bare hand-written loops, and its start-up against bare imports.

python benchmarks/overhead.py [--quick] [--rounds N] [--only single,ddp,noise,loader,tensorflow,jax,startup,script]

Both sides of a ratio run in the same processes on the same cores with the same settings, epoch by epoch in turn
(`alternating.py`), in several fresh sets of processes one after another.
"""

import argparse
import json
import math
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
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from paceline.contract.context import Context, Process, Rendezvous
from paceline.plan import complete
from paceline.runs.devices import cores_each, lay_out, process_environment
from paceline.spec import ModelFile, RunSpec
from paceline.store import Store
from paceline.strategies import strategy
from paceline.systems import local_system
from paceline.workloads.layers import Conv, Dense

HERE = Path(__file__).parent
# Epochs at the start of every process that count for neither side: memory pools fill, clocks rise.
WARM_UP_EPOCHS = 2
# Both sides train on the same batches from the same weights; a larger difference means that they did unlike work.
LOSS_TOLERANCE = 1e-3
PATIENCE_SECONDS = 1800
# Of each way in which a script is observed, in one process.
OBSERVED_EPOCHS = 42
# What is known of each epoch of each loop.
Views = dict[str, list[tuple[float, float, float]]]
SECONDS, CPU_SECONDS, LOSS = 0, 1, 2


@dataclass(frozen=True)
class Loop:
    """One loop to compare. An epoch is short, so that a burst of other load spoils few of them."""

    workload: str
    strategy: str
    workers: int
    batch: int
    train_samples: int
    epochs: int
    # Scripts of the folder `bare`, and how near to each the loop must come.
    targets: tuple[tuple[str, float], ...]
    # How far the losses may be apart.
    tolerance: float = LOSS_TOLERANCE
    accumulation: int = 1
    noise_scale: bool = False
    # A file of the folder `bare` with the model and its data, where it is no built-in workload.
    model: str | None = None

    @property
    def bare(self) -> list[str]:
        """The scripts alone."""
        return [name for name, _ in self.targets]

    @property
    def name(self) -> str:
        """As the table has it."""
        return f"{self.strategy} x{self.workers}, {self.workload}, batch {self.batch}"

    def spec(self) -> RunSpec:
        """The run that Paceline makes of it."""
        fields = ("workload", "strategy", "workers", "train_samples", "epochs", "accumulation", "noise_scale")
        model = None if self.model is None else ModelFile.from_text(str(HERE / "bare" / self.model))
        values = {name: getattr(self, name) for name in fields}
        return complete(RunSpec(global_batch=self.batch, model=model, **values))


LOOPS = {
    "single": (
        Loop("mnist-small", "torch-single", 1, 256, 768, 42, (("bare_single", 0.99),)),
        Loop("mnist-large", "torch-single", 1, 64, 64, 22, (("bare_single", 0.99),)),
    ),
    "ddp": (
        Loop("mnist-small", "torch-ddp", 2, 256, 768, 42, (("bare_ddp", 0.98),)),
        Loop("mnist-large", "torch-ddp", 2, 64, 64, 22, (("bare_ddp", 0.98),)),
    ),
    "noise": (
        # Epochs of several steps, of which some are measured; of light models so many that a rhythm is chosen early.
        Loop(
            "mnist-large", "torch-single", 1, 64, 384, 12, (("without_noise", 0.99),), accumulation=2, noise_scale=True
        ),
        Loop("mnist-large", "torch-ddp", 2, 64, 384, 12, (("without_noise", 0.99),), noise_scale=True),
        Loop("mnist-small", "torch-ddp", 2, 64, 3072, 22, (("without_noise", 0.99),), noise_scale=True),
        Loop("mlp", "torch-ddp", 2, 64, 3072, 22, (("without_noise", 0.99),), noise_scale=True),
    ),
    # A DataLoader whose batches are dicts, the same on both sides.
    "loader": (
        Loop("dict batches", "torch-single", 1, 64, 768, 42, (("bare_loader", 0.99),), model="dict_batches.py"),
        Loop("dict batches", "torch-single", 1, 256, 768, 42, (("bare_loader", 0.99),), model="dict_batches.py"),
    ),
    "tensorflow": (
        Loop("mnist-small", "tf-single", 1, 256, 2560, 14, (("bare_tf", 0.98), ("keras_fit", 1.0))),
        Loop("mnist-large", "tf-single", 1, 64, 64, 14, (("bare_tf", 0.98), ("keras_fit", 1.0))),
    ),
    "jax": (
        Loop("mnist-small", "jax-single", 1, 256, 768, 30, (("bare_jax", 0.98),)),
        Loop("mnist-large", "jax-single", 1, 64, 64, 14, (("bare_jax", 0.98),)),
    ),
}


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
        reached = [sign * one >= sign * self.target for one in (statistics.median(self.ratios), *self.interval)]
        word = "yes" if reached[0] else "no"
        return word if len(set(reached)) == 1 else f"{word}, not settled"

    @property
    def interval(self) -> tuple[float, float]:
        """Where the true median is with 95 % confidence, by the order of the ratios; all of them if they are few."""
        ordered, count = sorted(self.ratios), len(self.ratios)
        outside = max(0, int(count / 2 - 0.98 * math.sqrt(count)))
        return ordered[outside], ordered[count - 1 - outside]


def start(command: list[str], spec: RunSpec, place: Process, port: str) -> subprocess.Popen[bytes]:
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
    """The arrays and starting weights that Paceline's processes would use, for a script that cannot ask Paceline.

    A model with data of its own needs none.
    """
    spec = loop.spec()
    path = folder / f"{loop.workload}.npz"
    if loop.model is not None:
        return path
    context = Context(spec, Process(0, 1, "worker", 0, ()), Rendezvous("", 0))
    data, layers, weights = context.data, context.model.layers, context.starting_weights()
    dense = [layer.units for layer in layers if isinstance(layer, Dense)]
    arrays: dict[str, Any] = {f"weight{n}": array for n, array in enumerate(weights.values())}
    np.savez(
        path,
        train_inputs=data.train_inputs, train_targets=data.train_targets,
        test_inputs=data.test_inputs, test_targets=data.test_targets,
        channels=[layer.channels for layer in layers if isinstance(layer, Conv)], units=dense[:-1],
        weights=len(weights), **arrays,
    )  # fmt: skip
    return path


def check_same_work(loop: Loop, views: Views) -> None:
    """Rounding differences grow with training, so later epochs tell nothing about the work done."""
    for bare in loop.bare:
        for ours, theirs in zip(views["paceline"][:WARM_UP_EPOCHS], views[bare][:WARM_UP_EPOCHS], strict=True):
            if abs(ours[LOSS] - theirs[LOSS]) > loop.tolerance * abs(theirs[LOSS]):
                raise RuntimeError(f"{loop.name}: the loss is {ours[LOSS]:.6f} here and {theirs[LOSS]:.6f} in {bare}")


def in_turn(number: int, first: Callable[[], Any], second: Callable[[], Any]) -> tuple[Any, Any]:
    """Both, and every other round in the opposite order, so that drift favours neither."""
    if number % 2:
        later = second()
        return first(), later
    return first(), second()


def progress(figure: Figure, rounds: int) -> str:
    return f"{figure.name}: round {len(figure.ratios)} of {rounds}: {figure.ratios[-1]:.3f}"


def compare_loop(loop: Loop, rounds: int, folder: Path, say: Callable[[str], None]) -> list[Figure]:
    """Epoch by epoch in turn within the same processes: whatever else the machine does slows all alike.

    The control is the bare loop against itself: what it strays from 1 is what this machine cannot tell apart now.
    """
    figures = {
        (bare, part): Figure(f"{loop.name}: {what} over {bare}", target)
        for bare, target in loop.targets
        for part, what in ((SECONDS, "samples/s"), (CPU_SECONDS, "samples per CPU second"))
    }
    control = Figure(f"{loop.name}: {loop.bare[0]} over itself, CPU", None)
    for number in range(rounds):
        views = compare_with(loop, folder, str(free_port()))
        for (bare, part), figure in figures.items():
            figure.ratios += ratios(views, bare, "paceline", part)
        control.ratios += ratios(views, loop.bare[0], "again", CPU_SECONDS)
        say(f"{loop.name}: process {number + 1} of {rounds}")
    return [*figures.values(), control]


def compare_with(loop: Loop, folder: Path, port: str) -> Views:
    """One set of processes in which all loops take turns; they must have done the same work."""
    data, spec = write_data(loop, folder), loop.spec()
    orders = data.with_suffix(".json")
    orders.write_text(spec.model_dump_json())
    roles = strategy(loop.strategy).needs.roles(spec)
    places = lay_out(roles, local_system().cores, cores_each(spec, roles, local_system().cores))
    command = [sys.executable, str(HERE / "alternating.py"), str(orders), str(data), str(loop.epochs), *loop.bare]
    views = together([start(command, spec, place, port) for place in places])
    check_same_work(loop, views)
    return views


def together(processes: list[subprocess.Popen[bytes]]) -> Views:
    """What the processes saw as one: the longest wall clock, the sum of CPU seconds, the mean loss."""
    try:
        said = [process.communicate(timeout=PATIENCE_SECONDS)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    ranks = [json.loads(one.strip().splitlines()[-1]) for one in said]
    return {
        name: [
            (max(view[0] for view in epoch), sum(view[1] for view in epoch), statistics.mean(view[2] for view in epoch))
            for epoch in zip(*(rank[name] for rank in ranks), strict=True)
        ]
        for name in ranks[0]
    }


def ratios(views: Views, over: str, under: str, part: int) -> list[float]:
    """How much faster the one is than the other, in each epoch after warm-up."""
    pairs = zip(views[over], views[under], strict=True)
    return [slower[part] / faster[part] for slower, faster in list(pairs)[WARM_UP_EPOCHS:]]


def compare_observed(rounds: int, epochs: int, say: Callable[[str], None]) -> list[Figure]:
    """What it costs a script to be observed, in each of the ways; epoch by epoch in turn within one process."""
    spec = RunSpec(global_batch=1, steps=1, allocator="default")
    (place,) = lay_out(strategy(spec.strategy).needs.roles(spec), local_system().cores, 1)
    figures: dict[str, Figure] = {}
    for number in range(rounds):
        command = [sys.executable, str(HERE / "observed.py"), str(epochs)]
        views = together([start(command, spec, place, str(free_port()))])
        for way in (name for name in views if name != "bare"):
            name = (
                "a bare script over itself, CPU"
                if way == "again"
                else f"a script observed ({way}): samples per CPU second"
            )
            figure = figures.setdefault(way, Figure(name, None if way == "again" else 0.99))
            figure.ratios += ratios(views, "bare", way, CPU_SECONDS)
        say(f"a script observed: process {number + 1} of {rounds}")
    return list(figures.values())


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
            partial(first_step_seconds, folder, number),
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
    table = Table("figure", "median", "95 % interval", "target", "met")
    for figure in figures:
        sign = "≥" if figure.higher_is_better else "≤"
        table.add_row(
            figure.name,
            f"{statistics.median(figure.ratios):.3f}",
            f"{figure.interval[0]:.3f} to {figure.interval[1]:.3f}",
            f"{sign} {figure.target:.2f}" if figure.target is not None else "",
            figure.verdict,
        )
    Console().print(table)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, help="pairs of fresh processes for each figure (7, with --quick 2)")
    parser.add_argument("--quick", action="store_true", help="few rounds of few epochs: that it works, not how fast")
    parser.add_argument(
        "--only",
        default="single,ddp,noise,loader,tensorflow,jax,startup,script",
        help="parts, separated by commas: %(default)s",
    )
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
        if "script" in parts:
            figures += compare_observed(rounds, OBSERVED_EPOCHS // (2 if asked.quick else 1), say)
        if "startup" in parts:
            figures += compare_startup(rounds, folder, say)
    show(figures)


if __name__ == "__main__":
    main()
