"""What a GPU's gauge reported ─► the numbers that a system file keeps: grids, efficiencies, curves of transfers."""

import re
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from paceline.calibrate.gpu.messages import HostTiming, TimedOperation, TimedTransfer
from paceline.calibrate.gpu.tiny import TINY_MODELS
from paceline.calibrate.measurements import never_falling
from paceline.costs.fusion import fused
from paceline.costs.layer_operations import model_operations
from paceline.costs.operations import Operation
from paceline.spec import Optimizer
from paceline.systems.files import load_hardware, shipped_systems
from paceline.systems.hardware import Collective, Curve, Device, Hardware, Link, Quantity
from paceline.systems.operation_times import OperationTimes
from paceline.workloads.base import model_facts

# The system whose links and other numbers stand in for a GPU that none describes.
STAND_IN = "h100-nvlink"
# Digits that a measurement is worth.
DIGITS = 4
# Products below this are small: of a third of a millisecond on the fastest GPUs.
SMALL_FLOPS = 1e11
LARGE_BYTES = 256e6
# Passes over memory that do little else; norms and the like reach less, and have points of their own.
PLAIN_PASSES = ("add", "mul", "clone", "relu")


def grid_of(timed: Iterable[TimedOperation]) -> tuple[OperationTimes, ...]:
    """Timings grouped by kind, precision, pass and name, sorted by shape."""
    groups: dict[tuple[Any, ...], list[tuple[Operation, float]]] = {}
    for row in timed:
        operation = row.operation
        if operation.call:
            continue
        key = (operation.kind, operation.numbers, operation.backward, operation.sums_rows, operation.plain_name)
        groups.setdefault(key, []).append((operation, _rounded(row.seconds)))
    return tuple(OperationTimes.of_rows(rows) for _, rows in sorted(groups.items()))


def calls_of(timed: Iterable[TimedOperation]) -> dict[str, float]:
    """Seconds of the very calls of a model."""
    return {row.operation.call: _rounded(row.seconds) for row in timed if row.operation.call}


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def efficiencies(timed: Sequence[TimedOperation], device: Device, source: str) -> dict[str, Quantity]:
    """The shares of data-sheet peaks that large and small products and memory-bound operations reach."""
    fields: dict[str, Quantity] = {}
    fastest = max(device.flops_per_second, key=lambda name: device.flops_per_second[name].value)
    products = [row for row in timed if row.operation.kind == "product" and row.operation.numbers == fastest]
    if products:
        peak = device.flops_per_second[fastest].value
        most = max(row.operation.flops / row.seconds for row in products)
        fields["product_efficiency"] = Quantity(value=_rounded(most / peak), source=source)
        # A line through small ones: what each takes beyond its operations at the best rate.
        beyond = [row.seconds * most - row.operation.flops for row in products if row.operation.flops < SMALL_FLOPS]
        if beyond:
            fields["half_rate_flops"] = Quantity(value=_rounded(max(0.0, median(beyond))), source=source)
    passes = [row for row in timed if row.operation.name in PLAIN_PASSES and row.operation.moved_bytes > LARGE_BYTES]
    if passes:
        reached = median(row.operation.moved_bytes / row.seconds for row in passes)
        share = min(1.0, reached / device.memory_bytes_per_second.value)
        fields["memory_efficiency"] = Quantity(value=_rounded(share), source=source)
    return fields


def host_seconds(timings: Sequence[HostTiming], device: Device, source: str) -> dict[str, Any]:
    """Host seconds per operation: tiny steps over their numbers of operations; the median over models."""
    per_operation: dict[str, list[float]] = {}
    for timing in timings:
        per_operation.setdefault(timing.execution, []).append(timing.seconds / _operations(timing))
    measured = {
        execution: Quantity(value=_rounded(median(values)), source=source)
        for execution, values in per_operation.items()
    }
    return {"host_seconds_per_operation": {**device.host_seconds_per_operation, **measured}}


def _operations(timing: HostTiming) -> float:
    """The number of operations in the tiny model's step."""
    model = TINY_MODELS[timing.model]
    facts = model_facts(model.layers, model.shape)
    step = model_operations(facts, model.samples, timing.precision, Optimizer())
    passes: list[Sequence[Operation]] = [step.update]
    for layer in step.layers:
        passes += [layer.forward, layer.backward]
    if timing.execution == "compiled":
        passes = [fused(operations) for operations in passes]
    return sum(operation.count for operations in passes for operation in operations)


def curves_of(transfers: Sequence[TimedTransfer], ranks: int) -> list[Collective]:
    """Seconds of each kind of transfer over bytes."""
    curves = []
    for kind in dict.fromkeys(row.kind for row in transfers):
        rows = sorted((row for row in transfers if row.kind == kind), key=lambda row: row.payload_bytes)
        seconds = [_rounded(value) for value in never_falling([row.seconds for row in rows])]
        curve = Curve.through([float(row.payload_bytes) for row in rows], seconds)
        curves.append(Collective(transport="nccl", kind=kind, ranks=ranks, curve=curve))
    return curves


def link_of(curves: Sequence[Collective], source: str) -> Link:
    """Latency and bandwidth of the link between two devices, for rank counts that were not measured."""
    pair = min(curves, key=lambda curve: (curve.ranks, curve.kind != "all-reduce"))
    size, seconds = pair.curve.sizes[-1], pair.curve.values[-1]
    # An all-reduce of two ranks sends each byte once.
    return Link(
        bytes_per_second=Quantity(value=_rounded(size / seconds), source=source),
        latency_seconds=Quantity(value=_rounded(pair.curve.values[0] / 2), source=source),
    )


def nearest_description(gpu: str) -> Hardware:
    """The shipped system with the same GPU, or another where none is described, for unmeasured values."""
    words = set(re.findall(r"[A-Z0-9]+", gpu.upper())) - {"NVIDIA", "GPU", "SXM", "PCIE"}
    for name in shipped_systems():
        hardware = load_hardware(name)
        if hardware.kind == "cuda" and (model := re.match("[a-z0-9]+", name)) and model[0].upper() in words:
            return hardware
    return load_hardware(STAND_IN)
