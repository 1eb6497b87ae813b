"""What Paceline makes of one GPU: its fast path against a loop written by hand, slices of it, and its energy counter.

python benchmarks/gpu.py [--quick] [--only fast,executions,slices,energy]

Needs a CUDA device, and MPS for the slices. Ratios are of epochs taken in turn within one process (`alternating.py`);
absolute figures are medians of the last epochs of real runs. `--data-dir` names a folder with the MNIST files; without
it the images are synthetic of the same shape.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from overhead import SECONDS, WARM_UP_EPOCHS, Loop, compare_with, free_port
from paceline.breakdown import PARTS, mean_parts
from paceline.plan import PlannedRun, complete
from paceline.record import Record
from paceline.runs.launch import launch
from paceline.runs.meters.energy import NvmlCounter, gpu_handles
from paceline.spec import RunSpec
from paceline.systems import local_system

BATCH = 512
# Of the whole MNIST; what a hand-written loop reached on one H200, and what Paceline must not fall short of.
LEAST_IMAGES_PER_SECOND = {"mnist-small": 1_000_000, "mnist-large": 340_000}
LEAST_RATIO = 0.97
LEAST_ON_FOUR_SLICES = 65_000
MOST_ENERGY_DIFFERENCE = 0.03


@dataclass
class Line:
    """One line of the table."""

    name: str
    value: str
    target: str = ""
    met: str = ""


@dataclass(frozen=True)
class FastLoop(Loop):
    """A loop on the GPU with everything that makes it fast."""

    # Half precision rounds in another order when it is compiled in another shape.
    tolerance: float = 0.03
    dataset: str = "synthetic"

    def spec(self) -> RunSpec:
        """The run that Paceline makes of it."""
        fields = ("workload", "strategy", "workers", "train_samples", "epochs", "dataset")
        return complete(
            RunSpec(
                global_batch=self.batch, device="cuda", precision="bf16", execution="compiled+graph",
                **shape_of(self.dataset), **{name: getattr(self, name) for name in fields},
            )
        )  # fmt: skip


def shape_of(dataset: str) -> dict[str, Any]:
    return {"input_shape": (1, 28, 28), "classes": 10} if dataset == "synthetic" else {}


def judged(name: str, value: float, least: float, form: str = ",.0f") -> Line:
    return Line(name, f"{value:{form}}", f"≥ {least:{form}}", "yes" if value >= least else "no")


def fast(dataset: str, quick: bool, say: Callable[[str], None]) -> list[Line]:
    """The fast path beside the loop written by hand, epoch by epoch in one process."""
    lines = []
    for workload, least in LEAST_IMAGES_PER_SECOND.items():
        epochs = 6 if quick else 14
        loop = FastLoop(
            workload, "torch-single", 1, BATCH, 60_000, epochs, (("bare_gpu", LEAST_RATIO),), dataset=dataset
        )
        with tempfile.TemporaryDirectory() as folder:
            views = compare_with(loop, Path(folder), str(free_port()))
        images = 60_000 // BATCH * BATCH
        ours, bare, again = (
            [images / view[SECONDS] for view in views[name][WARM_UP_EPOCHS:]]
            for name in ("paceline", "bare_gpu", "again")
        )
        ratio = statistics.median(one / other for one, other in zip(ours, bare, strict=True))
        control = statistics.median(one / other for one, other in zip(again, bare, strict=True))
        name = f"{workload}, batch {BATCH}, compiled+graph bf16"
        lines += [
            judged(f"{name}: images/s", statistics.median(ours), least),
            Line(f"{name}: by hand", f"{statistics.median(bare):,.0f}"),
            judged(f"{name}: over by hand", ratio, LEAST_RATIO, ".3f"),
            Line(f"{name}: by hand over itself", f"{control:.3f}"),
        ]
        say(f"{name}: done")
    return lines


def run(say: Callable[[str], None], **fields: Any) -> Record:
    spec = complete(RunSpec(**fields))
    record = launch(PlannedRun(spec, 0), "benchmark", local_system(), lambda _event: None)
    if not record.ok:
        raise RuntimeError(f"{spec.strategy} x{spec.workers} {spec.execution}: {record.reason}\n{record.log_tail}")
    say(f"{spec.strategy} x{spec.workers} {spec.workload} {spec.execution} {spec.precision}: done")
    return record


def rate(record: Record) -> float:
    assert record.steady is not None
    return record.steady.samples_per_second


def executions(dataset: str, quick: bool, say: Callable[[str], None]) -> list[Line]:
    """Each way to run a step of one worker, for reading beside each other."""
    lines = []
    ways = [
        ("torch-single", "eager", "fp32"), ("torch-single", "eager", "tf32"), ("torch-single", "graph", "tf32"),
        ("torch-single", "compiled", "bf16"), ("torch-single", "compiled+graph", "bf16"),
        ("jax-single", "eager", "fp32"), ("jax-single", "eager", "bf16"),
    ]  # fmt: skip
    for workload in LEAST_IMAGES_PER_SECOND:
        for name, execution, precision in ways:
            if name.startswith("jax") and "jax" not in local_system().frameworks:
                continue
            record = run(
                say, workload=workload, dataset=dataset, strategy=name, execution=execution, precision=precision,
                global_batch=BATCH, epochs=2 if quick else 4, device="cuda", **shape_of(dataset),
            )  # fmt: skip
            lines.append(Line(f"{workload} {name} {execution} {precision}: images/s", f"{rate(record):,.0f}"))
    return lines


def slices(dataset: str, quick: bool, say: Callable[[str], None]) -> list[Line]:
    """Data parallel over slices of a quarter of the GPU each, with where the time goes.

    The target was seen by hand with PyTorch's own default, which lets convolutions round to TF32; four quarters cannot
    do it in fp32 throughout, in which the whole card makes less (`executions`).
    """
    lines = []
    for precision, counts in (("tf32", (1, 2, 4)), ("fp32", (1, 4))):
        alone = 0.0
        for workers in counts:
            fields = {
                "workload": "mnist-large", "dataset": dataset, "strategy": "torch-ddp", "workers": workers,
                "slices": 4, "local_batch": BATCH, "epochs": 2 if quick else 3, "device": "cuda-slice",
                "precision": precision, **shape_of(dataset),
            }  # fmt: skip
            made = rate(run(say, **fields))
            alone = alone or made
            name = f"mnist-large torch-ddp on {workers} of 4 slices, {BATCH} each, eager {precision}"
            judge = workers == 4 and precision == "tf32"
            lines += [
                judged(f"{name}: images/s", made, LEAST_ON_FOUR_SLICES)
                if judge
                else Line(f"{name}: images/s", f"{made:,.0f}"),
                Line(f"{name}: efficiency", f"{made / workers / alone:.1%}"),
            ]
            if workers == 4:
                lines.append(step_line(name, run(say, **{**fields, "instrumented": True})))
    return lines


def step_line(name: str, record: Record) -> Line:
    """Where the time of a step goes, of the mean rank."""
    parts = mean_parts(record.breakdown)
    step = sum(parts.values())
    told = ", ".join(f"{part} {parts[part] / step:.0%}" for part in PARTS if parts[part] / step >= 0.005)
    return Line(f"{name}: a step of {step * 1e3:.1f} ms", told)


class NoCounter:
    """NVML without its energy counter, so that power is added up instead."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml

    def __getattr__(self, name: str) -> Any:
        if name == "nvmlDeviceGetTotalEnergyConsumption":
            return self._refuse
        return getattr(self._nvml, name)

    def _refuse(self, _handle: Any) -> int:
        raise self._nvml.NVMLError(self._nvml.NVML_ERROR_NOT_SUPPORTED)


def energy(dataset: str, quick: bool, say: Callable[[str], None]) -> list[Line]:
    """The GPU's energy counter against its power added up, over the same seconds of training."""
    import pynvml

    pynvml.nvmlInit()
    fields = {
        "workload": "mnist-large", "dataset": dataset, "strategy": "torch-single", "global_batch": BATCH,
        "epochs": 4 if quick else 10, "device": "cuda", **shape_of(dataset),
    }  # fmt: skip
    handles = gpu_handles(pynvml, [0])
    counted, added = NvmlCounter(pynvml, handles), NvmlCounter(NoCounter(pynvml), handles)
    seen: list[tuple[float, float]] = []

    def look(_event: object = None) -> None:
        seen.append((counted.joules(), added.joules()))

    def keep_looking() -> None:
        while not stop.wait(0.02):
            look()

    import threading

    stop = threading.Event()
    watcher = threading.Thread(target=keep_looking)
    watcher.start()
    try:
        began = time.perf_counter()
        run(say, **fields)
    finally:
        stop.set()
        watcher.join()
    by_counter, by_power = (seen[-1][one] - seen[0][one] for one in (0, 1))
    off = abs(by_power / by_counter - 1)
    name = f"energy of a run of {time.perf_counter() - began:.0f} s"
    return [
        Line(f"{name}: counter, J", f"{by_counter:,.0f}"),
        Line(f"{name}: power added up, J", f"{by_power:,.0f}"),
        Line(f"{name}: difference", f"{off:.1%}", f"≤ {MOST_ENERGY_DIFFERENCE:.0%}",
             "yes" if off <= MOST_ENERGY_DIFFERENCE else "no"),
    ]  # fmt: skip


SECTIONS = {"fast": fast, "executions": executions, "slices": slices, "energy": energy}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few epochs: that it works, not how fast")
    parser.add_argument("--only", default=",".join(SECTIONS), help="parts, separated by commas: %(default)s")
    parser.add_argument("--data-dir", type=Path, help="folder with the four MNIST files")
    asked = parser.parse_args()
    if not local_system().gpus:
        raise SystemExit("benchmarks/gpu.py needs a CUDA device, and this machine has none")
    if asked.data_dir is not None:
        os.environ["PACELINE_DATA"] = str(asked.data_dir.resolve())
    say = Console(stderr=True, highlight=False).print
    for name in asked.only.split(","):
        table = Table("figure", "value", "target", "met", title=name)
        for line in SECTIONS[name]("mnist" if asked.data_dir else "synthetic", asked.quick, say):
            table.add_row(line.name, line.value, line.target, line.met)
        Console(width=160).print(table)


if __name__ == "__main__":
    main()
