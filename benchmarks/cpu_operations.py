"""Predicted step times on one core beside measured ones: by a grid of operations, by the model's own operations.

python benchmarks/cpu_operations.py --system FILE [--rounds 3] [--only mlp,resnet]

`--system` is what `paceline calibrate` wrote on this machine, with a workload that is none of these. Steps are those of
`torch-single`, in CPU seconds; models take turns, and the median of the rounds counts. The models' own operations are
timed between the rounds, in a process with the environment of a run.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from paceline.calibrate.gpu.fit import grid_of
from paceline.calibrate.gpu.messages import TimedOperation
from paceline.calibrate.gpu.replay import distinct_operations
from paceline.contract.context import Process
from paceline.costs.layer_operations import model_operations
from paceline.costs.operations import Operation, StepOperations
from paceline.plan import PlannedRun, complete
from paceline.predict.measured import measured_step
from paceline.predict.question import Question
from paceline.runs.devices import process_environment
from paceline.runs.launch import launch
from paceline.runs.launchers.local import LocalLauncher
from paceline.runs.starters import fork_servers
from paceline.runs.traced_model import TracedModel
from paceline.runs.wire import Message
from paceline.spec import BASELINE, ModelFile, Optimizer, RunSpec
from paceline.strategies import strategy
from paceline.systems.files import load_hardware
from paceline.systems.hardware import Hardware
from paceline.systems.local import local_system

MODELS = Path(__file__).with_name("cpu_models.py")
STEPS, EPOCHS, STUDY = 6, 5, "operations on a core"
IMAGES = {"input_shape": (3, 32, 32), "classes": 10, "dataset": "synthetic"}
SMALL = {"depth": 3, "sequence": 64, "vocabulary": 1000}


@dataclass(frozen=True)
class Case:
    """A model and its batch."""

    name: str
    batch: int
    workload: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)

    @property
    def model(self) -> dict[str, Any]:
        """What a run and a question are told of it."""
        if self.workload:
            return {"workload": self.workload, "options": self.options, **self.fields}
        return {"model": ModelFile.from_text(f"{MODELS}:{self.name}"), "dataset": "synthetic", **self.fields}

    @property
    def spec(self) -> RunSpec:
        """Its run on one worker."""
        samples = self.batch * STEPS
        return complete(
            RunSpec(strategy=BASELINE, global_batch=self.batch, train_samples=samples, epochs=EPOCHS, **self.model)
        )

    def question(self, hardware: Hardware) -> Question:
        """What is asked of a system."""
        return Question(hardware=hardware, strategies=(), global_batches=(self.batch,), **self.model)


CASES = (
    Case("mlp", 128, "mlp"), Case("mlp, wide", 128, "mlp", {"depth": 2, "width": 768}),
    Case("transformer", 16, "transformer"),
    Case("transformer, narrow", 16, "transformer", {"depth": 2, "width": 192}),
    Case("mnist-large", 32, "mnist-large"), Case("gpt, small", 8, "gpt", {"width": 192, "heads": 6, **SMALL}),
    Case("llama, tiny", 8, "llama", {"width": 160, "heads": 5, "kv_heads": 5, "hidden": 432, **SMALL}),
    Case("resnet-18", 16, "resnet", {"depth": 18, "width": 64}, IMAGES),
    Case("vit, tiny", 16, "vit", {"depth": 4, "width": 192, "heads": 3, "patch": 4}, IMAGES),
    Case("normed_images", 32, fields=IMAGES),
    Case("recurrent", 32, fields={"input_shape": (32, 64), "classes": 10}),
    Case("attentive", 16, fields={"input_shape": (64, 48), "classes": 10}),
)  # fmt: skip


class Operations(Message):
    """What the process that replays is asked, and what it answers."""

    wanted: tuple[Operation, ...] = ()
    timed: tuple[TimedOperation, ...] = ()


def step_of(case: Case, question: Question) -> StepOperations:
    """As predictions have it: built-in models by their facts, others traced."""
    if case.workload:
        return model_operations(question.facts, case.batch, "fp32", Optimizer())
    traced = TracedModel(question.base).at(case.batch, "fp32", Optimizer())
    assert traced is not None
    return traced


def replay(wanted: Sequence[Operation]) -> list[TimedOperation]:
    """Seconds of each operation on one core, in a process of its own."""
    core = local_system().cores[:1]
    environment = process_environment(RunSpec(global_batch=1, steps=1), Process(0, 1, "worker", 0, core), os.environ)
    answer = subprocess.run(
        [sys.executable, __file__, "--replay"], env=environment, check=True, capture_output=True, text=True,
        input=Operations(wanted=tuple(wanted)).model_dump_json(),
    )  # fmt: skip
    return list(Operations.model_validate_json(answer.stdout).timed)


def answer_replay() -> None:
    """The process that replays."""
    import torch

    from paceline.calibrate.torch_gauge import operation_timings

    torch.set_num_threads(1)
    os.sched_setaffinity(0, local_system().cores[:1])
    asked = Operations.model_validate_json(sys.stdin.read())
    print(Operations(timed=tuple(operation_timings(asked.wanted))).model_dump_json())


def measure(cases: Sequence[Case], rounds: int, wanted: Sequence[Operation]) -> tuple[dict[str, float], Any]:
    """The median CPU seconds of each case's step, and the shorter time of each operation."""
    taken: dict[str, list[float]] = {}
    shortest: dict[Operation, float] = {}
    system = local_system()
    with fork_servers() as servers:
        launcher = LocalLauncher(servers.starter(strategy(BASELINE)))
        for number in range(rounds):
            for case in cases:
                record = launch(PlannedRun(case.spec, number), STUDY, system, lambda _event: None, launcher=launcher)
                step = measured_step(record)
                assert step is not None, record.reason
                taken.setdefault(case.name, []).append(step.cpu_seconds)
            for row in replay(wanted):
                shortest[row.operation] = min(row.seconds, shortest.get(row.operation, row.seconds))
    timed = [TimedOperation(operation=operation, seconds=seconds) for operation, seconds in shortest.items()]
    return {name: median(seconds) for name, seconds in taken.items()}, grid_of(timed)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--system", type=Path)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--only", default="")
    options.add_argument("--json", type=Path, help="file to keep the numbers in")
    options.add_argument("--replay", action="store_true", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.replay:
        answer_replay()
        return
    hardware, console = load_hardware(str(given.system)), Console(width=120, highlight=False)
    cases = [case for case in CASES if not given.only or any(part in case.name for part in given.only.split(","))]
    steps = [step_of(case, case.question(hardware)) for case in cases]
    seconds, replayed = measure(cases, given.rounds, distinct_operations(steps))
    calibration = hardware.calibrated.model_copy(update={"replayed": replayed})
    systems = {"grid": hardware, "replayed": hardware.model_copy(update={"calibration": calibration})}
    table = Table("model", "batch", *(Column(name, justify="right") for name in ("measured ms", *systems)), box=None)
    errors: dict[str, list[float]] = {name: [] for name in systems}
    for case in cases:
        measured = seconds[case.name]
        for name, system in systems.items():
            predicted = case.question(system).predictor.predict(case.spec).parts.cpu_seconds
            errors[name].append(predicted / measured - 1)
        table.add_row(
            case.name, str(case.batch), f"{measured * 1e3:.2f}", *(f"{errors[name][-1]:+.1%}" for name in systems)
        )
    console.print(table)
    for name, found in errors.items():
        sizes = [abs(error) for error in found]
        console.print(f"{name}: mean error {mean(sizes):.1%}, worst {max(sizes):.1%}")
    if given.json:
        given.json.write_text(json.dumps({"measured": seconds, **errors}, indent=1) + "\n")


if __name__ == "__main__":
    main()
