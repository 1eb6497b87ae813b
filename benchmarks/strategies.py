"""What each PyTorch strategy costs beside torch-ddp: samples/s and CPU seconds per step, as ratios within a round.

python benchmarks/strategies.py [--quick] [--rounds N] [--strategies torch-ps-sync,torch-fsdp] [--workloads mnist-small]

Two workers each (one for strategies that always have one). In a round every strategy runs once, in an order that
turns from round to round; a ratio compares with torch-ddp in the same round, so that other load hits both alike. On
transformers torch-mesh is compared with what it stands for: copies with torch-ddp, shards with torch-fsdp. CPU seconds
are those of all processes, servers too. Processes are forked with PyTorch imported: start-up is not measured.
"""

import argparse
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from rich.console import Console
from rich.table import Column, Table

from paceline.plan import PlannedRun, complete, expand_strategies, refusal
from paceline.record import Record
from paceline.runs.launch import launch
from paceline.runs.launchers.local import LocalLauncher
from paceline.runs.probe import probe
from paceline.runs.starters import ForkServers, fork_servers
from paceline.spec import RunSpec, Scalar
from paceline.strategies import strategy
from paceline.systems import local_system

BASE, WORKERS = "torch-ddp", 2
ALL = "torch-*"
# Epochs at the start of every run that do not count: memory pools fill, clocks rise.
WARM_UP_EPOCHS = 2
COPIES, SHARDS = "torch-mesh replicate=2", "torch-mesh shard=2"
# Least samples/s beside another strategy.
TARGETS = {"torch-ps-sync": ("torch-ddp", 0.7), COPIES: ("torch-ddp", 0.9), SHARDS: ("torch-fsdp", 0.97)}


@dataclass(frozen=True)
class Load:
    """What is trained. An epoch is short, so that a burst of other load spoils few of them."""

    workload: str
    global_batch: int
    train_samples: int
    epochs: int
    options: dict[str, Scalar] = field(default_factory=dict)
    # What is compared on it unless the user says; all strategies where it is empty.
    compared: tuple[str, ...] = ()

    def spec(self, name: str) -> RunSpec:
        """With the workers that this strategy can have; its layout may follow its name."""
        kind, _, layout = name.partition(" ")
        workers = strategy(kind).needs.fixed_workers or WORKERS
        fields = {key: value for key, value in vars(self).items() if key != "compared"}
        return complete(RunSpec.parse({"strategy": kind, "workers": workers, "layout": layout or None, **fields}, name))


MESH = ("torch-ddp", COPIES, "torch-fsdp", SHARDS)
LOADS = (
    Load("mnist-small", 256, 2560, 14),
    Load("mnist-large", 64, 256, 8),
    Load("llama", 32, 128, 8, {"size": "tiny"}, MESH),
    Load("transformer", 32, 128, 8, {"width": 256}, MESH),
)


@dataclass(frozen=True)
class Speed:
    """Of one run: the median epoch after warm-up by wall clock, and the CPU time of a step in the calmer half."""

    samples_per_second: float
    step_cpu_seconds: float


@dataclass
class Figure:
    """One strategy on one load: what it did in every round, and another in the same rounds."""

    name: str
    # What it is compared with.
    beside: str = BASE
    own: list[Speed] = field(default_factory=list)
    base: list[Speed] = field(default_factory=list)

    def ratios(self, of: Callable[[Speed], float]) -> list[float]:
        """One for each round."""
        return [of(own) / of(base) for own, base in zip(self.own, self.base, strict=True)]


def speed(record: Record) -> Speed:
    steady = record.epochs[WARM_UP_EPOCHS:]
    # The slower half is where other programs took the cores and their caches.
    calm = sorted(epoch.cpu_seconds / epoch.steps for epoch in steady)[: (len(steady) + 1) // 2]
    steps = sum(epoch.steps for epoch in record.epochs)
    # Processes that serve have no epochs of their own; they tell what serving took them in all.
    serving = sum(float(rank.details.get("serving_cpu_seconds", 0.0)) for rank in record.ranks)
    return Speed(
        statistics.median(epoch.samples_per_second for epoch in steady), statistics.mean(calm) + serving / steps
    )


def measure(load: Load, name: str, servers: ForkServers) -> Speed:
    run = PlannedRun(load.spec(name), 0)
    record = launch(
        run, "strategies", local_system(), lambda _event: None,
        launcher=LocalLauncher(servers.starter(strategy(run.spec.strategy))),
    )  # fmt: skip
    if not record.ok:
        raise RuntimeError(f"{name} on {load.workload}: {record.reason}\n{record.log_tail}")
    return speed(record)


def compare(
    load: Load, names: list[str], rounds: int, servers: ForkServers, say: Callable[[str], None]
) -> list[Figure]:
    figures = {name: Figure(name, beside(name, names)) for name in names}
    for number in range(rounds):
        turned = names[number % len(names) :] + names[: number % len(names)]
        speeds = {}
        for name in turned:
            say(f"{load.workload}: round {number + 1} of {rounds}: {name}")
            speeds[name] = measure(load, name, servers)
        for name, figure in figures.items():
            figure.own.append(speeds[name])
            figure.base.append(speeds[figure.beside])
    return list(figures.values())


def beside(name: str, names: list[str]) -> str:
    """What a strategy is compared with: torch-ddp, unless its target is about another one that is there."""
    wanted = TARGETS.get(name, (BASE, 0.0))[0]
    return wanted if wanted in names else BASE


def spread(ratios: list[float]) -> str:
    middle = f"{statistics.median(ratios):.2f}"
    return middle if min(ratios) == max(ratios) else f"{middle} ({min(ratios):.2f}–{max(ratios):.2f})"


def show(load: Load, figures: list[Figure], console: Console) -> None:
    title = f"{load.workload}, global batch {load.global_batch}, {WORKERS} workers"
    caption = "ratios to another strategy in the same round: median (range)"
    name = Column("strategy", no_wrap=True)
    headers = ("samples/s", "beside", "ratio", "CPU s per step", "target", "met")
    table = Table(name, *headers, title=title, caption=caption)
    for figure in figures:
        wall, cpu = figure.ratios(lambda own: own.samples_per_second), figure.ratios(lambda own: own.step_cpu_seconds)
        target = TARGETS[figure.name][1] if TARGETS.get(figure.name, ("", 0.0))[0] == figure.beside else None
        met = "" if target is None else "yes" if statistics.median(wall) >= target else "no"
        middle = statistics.median(own.samples_per_second for own in figure.own)
        aim = "" if target is None else f"≥ {target:.2f}"
        table.add_row(figure.name, f"{middle:,.0f}", figure.beside, spread(wall), spread(cpu), aim, met)
    console.print(table)


def chosen(load: Load, patterns: str | None, say: Callable[[str], None]) -> list[str]:
    """Strategies that can run here; torch-ddp is always one."""
    names = []
    asked = load.compared if patterns is None and load.compared else expand_strategies((patterns or ALL).split(","))
    for name in dict.fromkeys([BASE, *asked]):
        reason = refusal(load.spec(name), local_system(), probe)
        if reason is None:
            names.append(name)
        else:
            say(f"left out: {name}: {reason}")
    return names


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, help="runs of each strategy (7, with --quick 2)")
    parser.add_argument("--quick", action="store_true", help="few rounds of few epochs: that it works, not how fast")
    parser.add_argument("--strategies", help=f"names or patterns, separated by commas: {ALL}; on transformers the mesh")
    parser.add_argument("--workloads", default=",".join(load.workload for load in LOADS), help="of %(default)s")
    return parser.parse_args()


def main() -> None:
    asked, console, progress = options(), Console(), Console(stderr=True)
    rounds = asked.rounds or (2 if asked.quick else 7)
    for load in (load for load in LOADS if load.workload in asked.workloads.split(",")):
        names = chosen(load, asked.strategies, progress.print)
        shorter = replace(load, epochs=WARM_UP_EPOCHS + 2) if asked.quick else load
        with fork_servers() as servers, progress.status(load.workload) as status:

            def say(text: str, to: Callable[[str], None] = status.update) -> None:
                to(text)
                if not progress.is_terminal:
                    progress.print(text)

            figures = compare(shorter, names, rounds, servers, say)
        show(load, figures, console)


if __name__ == "__main__":
    main()
