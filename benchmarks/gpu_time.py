"""Predicted step times on a GPU beside measured ones: by the data sheet, by a grid, by the model's own operations.

python benchmarks/gpu_time.py --system h200.toml [--seconds 150] [--only gpt,resnet] [--by facts,trace]

`--system` is what `paceline calibrate --device cuda --out h200.toml` wrote. Prints a line of JSON for each
configuration and one for all of them. Steps are those of Paceline's own job; a step is bound by the host where asking
for it took as long as it. Models with `held_out` were never looked at to choose a constant.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from paceline.calibrate.gpu.calls_gauge import call_of
from paceline.calibrate.gpu.fit import calls_of, grid_of
from paceline.calibrate.gpu.messages import TimedOperation
from paceline.calibrate.gpu.model_host_gauge import host_step_seconds
from paceline.calibrate.gpu.operations_gauge import asks_long, device_seconds
from paceline.calibrate.gpu.replay import distinct_operations, host_step
from paceline.contract.context import Context, Process, Rendezvous
from paceline.costs.footprint import ModelFacts
from paceline.costs.layer_operations import model_operations
from paceline.costs.operations import StepOperations
from paceline.errors import UserError
from paceline.plan import complete
from paceline.predict.compute import Compute, ReplayableModel, model_digest
from paceline.predict.operations import OperationTimer
from paceline.predict.question import Question
from paceline.predict.steps import step_seconds
from paceline.runs.probe import probe
from paceline.runs.trace import one_step, traced_all
from paceline.runs.traced_model import TracedModel
from paceline.spec import Execution, ModelFile, Precision, RunSpec
from paceline.strategies import strategy
from paceline.systems.files import load_hardware
from paceline.systems.gpu_memory import GpuMemory
from paceline.systems.hardware import Hardware

SINGLE = "torch-single"
MODELS = Path(__file__).with_name("gpu_models.py")
# Steps before the clock starts, and for how long and how often at least steps are timed.
SETTLING, TIMED_SECONDS, LEAST_STEPS = 6, 0.3, 5
HOST_BOUND = 0.9
REPLAY_SECONDS = 15.0
TRACERS = 6


@dataclass(frozen=True)
class Case:
    """One configuration to measure."""

    name: str
    batch: int
    precision: Precision = "bf16"
    execution: Execution = "eager"
    options: dict[str, Any] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)
    held_out: bool = False

    def spec(self) -> RunSpec:
        """The run, with as many samples as the steps that are timed need."""
        fields: dict[str, Any] = {"workload": self.name, "options": self.options}
        if self.name.startswith("own:"):
            fields = {
                "model": ModelFile.from_text(f"{MODELS}:{self.name.removeprefix('own:')}"),
                "dataset": "synthetic",
            }
        return complete(
            RunSpec(
                strategy=SINGLE, device="cuda", precision=self.precision, execution=self.execution,
                global_batch=self.batch, epochs=1, train_samples=self.batch * 2, dataset_copies=200,
                **{**fields, **self.fields},
            )
        )  # fmt: skip


GPT = {"size": "124m"}
IMAGES = {"input_shape": (3, 224, 224), "classes": 1000, "dataset": "synthetic"}
LLAMA = {"depth": 8, "width": 1024, "heads": 16, "kv_heads": 4, "sequence": 1024, "vocabulary": 32000}
PADDED = {**GPT, "vocabulary": 50304}
SMALL_IMAGES = {"input_shape": (3, 96, 96), "classes": 100, "dataset": "synthetic"}
# The most telling first, because there may be no time for all.
CASES = (
    Case("gpt", 16, options=GPT), Case("own:plain_network", 256, fields=SMALL_IMAGES, held_out=True),
    Case("vit", 64, fields=IMAGES, held_out=True), Case("resnet", 128, fields=IMAGES),
    Case("own:encoder", 64, fields={"input_shape": (256, 80), "classes": 40, "dataset": "synthetic"}, held_out=True),
    Case("llama", 8, options=LLAMA, held_out=True), Case("gpt", 32, options=PADDED, execution="compiled"),
    Case("bert", 32, held_out=True), Case("own:mixer", 128, fields=IMAGES, held_out=True),
    Case("mnist-large", 512, "tf32"), Case("mlp", 1024, "tf32", options={"depth": 8, "width": 4096}),
    Case("own:gated_network", 4096, "tf32", fields={"input_shape": (1024,), "classes": 1000}, held_out=True),
    Case("gpt", 4, options=GPT), Case("resnet", 256, fields=IMAGES, held_out=True),
    Case("own:plain_network", 256, execution="compiled", fields=SMALL_IMAGES, held_out=True),
    Case("resnet", 128, execution="compiled", fields=IMAGES), Case("bert", 8, execution="graph", held_out=True),
    Case("resnet", 32, "tf32", fields=IMAGES), Case("vit", 64, "tf32", fields=IMAGES, held_out=True),
    Case("gpt", 8, options={"size": "350m"}, held_out=True), Case("gpt", 16, "tf32", options=GPT),
    Case("mnist-large", 512, "tf32", "graph"), Case("gpt", 32, options=PADDED),
    Case("own:unet", 64, fields={"input_shape": (3, 128, 128), "classes": 10}, held_out=True),
    Case("own:two_gates", 4096, "tf32", fields={"input_shape": (512,), "classes": 100}, held_out=True),
    Case("own:recurrent", 32, fields={"input_shape": (256,), "classes": 8000, "dataset": "tokens"}),
    *(
        Case(f"own:{name}", batch, fields=IMAGES, held_out=True)
        for name, batch in (("convnext", 64), ("swin", 64), ("densenet", 64), ("vgg", 64), ("regnet", 96),
                            ("efficientnet", 96), ("wide_resnet", 96), ("mobilenet", 192))
    ),
)  # fmt: skip


def measured(spec: RunSpec) -> dict[str, float]:
    """Seconds of a step, of the host that asks for it, and of the device where it sleeps until all is asked for."""
    job = strategy(SINGLE).open_job(Context(spec, Process(0, 1, "worker", 0, ()), Rendezvous("", 0)))
    torch.cuda.reset_peak_memory_stats()
    job.start_epoch(0)  # type: ignore[union-attr]
    job.step(0, SETTLING)  # type: ignore[union-attr]
    job.wait()  # type: ignore[union-attr]
    started = time.perf_counter()
    job.step(SETTLING, 2)  # type: ignore[union-attr]
    job.wait()  # type: ignore[union-attr]
    count = max(LEAST_STEPS, int(TIMED_SECONDS / ((time.perf_counter() - started) / 2)))
    count = min(count, 150)
    started = time.perf_counter()
    job.step(SETTLING + 2, count)  # type: ignore[union-attr]
    asked = time.perf_counter() - started
    job.wait()  # type: ignore[union-attr]
    step = (time.perf_counter() - started) / count
    peak = torch.cuda.max_memory_allocated()
    job.close()
    return {"step": step, "host": asked / count, "host_bound": float(asked / count > HOST_BOUND * step), "peak": peak}


def operations_of(spec: RunSpec, traced: bool) -> StepOperations | None:
    """Of the step: as a trace has them, or worked out from the model's facts."""
    if traced:
        trace = traced_all([one_step(spec)], GpuMemory(), keeps_calls=True)[0]
        if isinstance(trace, str):
            print(f"no trace: {trace}", file=sys.stderr)
            return None
        return trace.operations
    return model_operations(facts_of(spec), spec.samples_per_step, spec.precision, spec.optimizer)


def facts_of(spec: RunSpec) -> ModelFacts:
    """The model's layers in numbers."""
    facts = Question(load_hardware("h200-nvlink"), **_asked(spec)).facts if spec.model is None else probe(spec).model
    assert facts is not None
    return facts


def trace_all(specs: list[RunSpec]) -> None:
    """Traces are kept: several processes make all of them beforehand."""
    steps = list({step.model_dump_json(): step for step in map(one_step, specs)}.values())
    with ProcessPoolExecutor(TRACERS, get_context("spawn")) as pool:
        list(pool.map(_trace, steps))


def _trace(step: RunSpec) -> None:
    traced_all([step], GpuMemory(), keeps_calls=True)


def _asked(spec: RunSpec) -> dict[str, Any]:
    names = ("workload", "options", "dataset", "input_shape", "classes", "precision")
    return {name: getattr(spec, name) for name in names}


def replayed(spec: RunSpec, step: StepOperations, hardware: Hardware, until: float) -> tuple[Hardware, int]:
    """The system with these operations timed, and how many were."""
    timed, device = [], torch.device("cuda", 0)
    for operation in distinct_operations([step]):
        if time.monotonic() > until:
            print("no time to replay more", file=sys.stderr)
            break
        try:
            seconds = device_seconds(call_of(operation, device), device, asks_long(operation))
        except (RuntimeError, TypeError) as error:
            print(f"not replayed: {operation}: {str(error).splitlines()[0]}", file=sys.stderr)
            continue
        timed.append(TimedOperation(operation=operation, seconds=seconds))
    torch.cuda.empty_cache()
    assert hardware.calibration is not None
    digest = model_digest(facts_of(spec))
    hosts = {digest: {spec.precision: host_step_seconds(host_step(spec))}}
    torch.cuda.empty_cache()
    calibration = hardware.calibration.model_copy(
        update={
            "replayed": grid_of(timed), "replayed_calls": calls_of(timed), "replayed_hosts": hosts,
            "replayed_batches": {digest: (spec.samples_per_step,)},
        }
    )  # fmt: skip
    return hardware.model_copy(update={"calibration": calibration}), len(timed)


def compare(case: Case, described: Hardware, calibrated: Hardware, ways: Sequence[str]) -> Iterator[dict[str, Any]]:
    """What was measured, and each prediction with its error."""
    spec = case.spec()
    row: dict[str, Any] = {
        "case": case.name, "batch": case.batch, "precision": case.precision, "execution": case.execution,
        "held_out": case.held_out,
    }  # fmt: skip
    row["measured"] = found = measured(spec)
    torch.cuda.empty_cache()
    for how in ways:
        step = operations_of(spec, how == "trace")
        if step is None:
            continue
        systems = {"data sheet": described, "grid": calibrated}
        began = time.monotonic()
        systems["replay"], count = replayed(spec, step, calibrated, began + REPLAY_SECONDS)
        row[f"replay seconds by {how}"] = round(time.monotonic() - began, 2)
        for name, hardware in systems.items():
            made = step_seconds(step, OperationTimer(hardware), case.execution)
            if name == "replay" and how == "trace":
                model = ReplayableModel(facts_of(spec), TracedModel(spec))
                compute = Compute(hardware, "torch", case.precision, case.execution, spec.optimizer, replayable=model)
                made = compute.replayed_step(spec.samples_per_step) or made
            row[f"{name} by {how}"] = {
                "step": made.total,
                "device": made.device,
                "host": made.host,
                "error": made.total / found["step"] - 1,
                "deviation": made.deviation,
            }
        row[f"operations by {how}"] = count
    yield row


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--system", type=Path, required=True)
    arguments.add_argument("--seconds", type=float, default=150.0)
    arguments.add_argument("--only", default="")
    arguments.add_argument("--by", default="facts,trace")
    chosen = arguments.parse_args()
    described, calibrated = load_hardware("h200-nvlink"), load_hardware(str(chosen.system))
    plain = described.model_copy(update={"calibration": None})
    until, rows = time.monotonic() + chosen.seconds, []  # type: ignore[var-annotated]
    began = time.monotonic()
    trace_all([case.spec() for case in CASES if not chosen.only or case.name in chosen.only.split(",")])
    print(json.dumps({"tracing seconds": round(time.monotonic() - began, 1)}), flush=True)
    for case in CASES:
        if time.monotonic() > until or (chosen.only and case.name not in chosen.only.split(",")):
            continue
        try:
            rows += compare(case, plain, calibrated, chosen.by.split(","))
        except (RuntimeError, UserError, torch.OutOfMemoryError) as error:
            print(
                json.dumps({"case": case.name, "batch": case.batch, "failed": str(error).splitlines()[0]}), flush=True
            )
            continue
        print(json.dumps(rows[-1]), flush=True)
    for held_out in (False, True):
        some = [row for row in rows if row["held_out"] == held_out]
        errors = {
            name: [abs(row[name]["error"]) for row in some if name in row and not row["measured"]["host_bound"]]
            for name in {key for row in some for key in row if " by " in key and isinstance(row[key], dict)}
        }
        summary = {
            name: {"rows": len(each), "mean": round(mean(each), 4), "worst": round(max(each), 4)}
            for name, each in sorted(errors.items())
            if each
        }
        print(json.dumps({"held_out": held_out, "device-bound rows": summary}), flush=True)


if __name__ == "__main__":
    main()
