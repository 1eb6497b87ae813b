"""How fast this machine is in PyTorch: operations on a core, what layers hold, collectives by bytes and ranks.

`measure` is what the processes do that `gauge.py` asks for.
"""

import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from paceline.calibrate.core_cases import core_cases
from paceline.calibrate.gauge import GaugeRequest
from paceline.calibrate.gpu.calls_gauge import call_of
from paceline.calibrate.gpu.messages import TimedOperation
from paceline.costs.footprint import ModelFacts
from paceline.costs.operations import Operation
from paceline.frameworks.torch.model import build_module
from paceline.runs.meters.memory import resident, start_peak_anew
from paceline.workloads.base import model_facts
from paceline.workloads.layers import Block, Conv, Dense, Layer, MaxPool, Norm, Shape

IMAGE_DIMENSIONS = 3
PATIENCE = timedelta(seconds=120)
# Each timing is repeated for so long, and at least so often; the least disturbed part counts.
REPEAT_SECONDS, LEAST_REPEATS, COUNTED_SHARE = 0.07, 6, 1 / 4
MOST_REPEATS = 60
# Transfers are repeated in so many turns.
TURNS = 3
# So many operations take turns, as often as this after the first time: in a model, too, an operation finds the caches
# full of others' numbers.
OPERATIONS_TOGETHER, OPERATION_TURNS = 40, 8
# Between transfers a step computes: what it reads and writes meanwhile drives the payload out of the caches.
BETWEEN_BYTES = 1 << 23
# What is computed while bytes are on their way: a product small enough to be asked about often.
PRODUCT_SIZE = 192
HIDDEN_BYTES = 1 << 24
HIDDEN_ROUNDS = 6
# On all cores at once a part of the operations is timed.
CROWDED_EVERY = 4


# Newer versions of PyTorch have another name for it.
REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@dataclass(frozen=True)
class LayerCase:
    """One layer at one batch; `first` if nothing before it is trained."""

    layer: Layer
    shape: Shape
    batch: int
    first: bool = False

    def values(self) -> dict[str, Any]:
        """The counts that its time and memory are explained by."""
        facts: ModelFacts = model_facts((self.layer,), self.shape)
        return {"layer": asdict(facts.layers[0]), "input_elements": facts.input_elements, "batch": self.batch,
                "first": self.first}  # fmt: skip


# Of these it is seen what their passes hold beside tensors: two of each kind, so that weights and samples come apart.
SCRATCH_CASES = (
    LayerCase(Conv(32), (1, 28, 28), 128, first=True),
    LayerCase(Conv(256), (128, 14, 14), 8),
    LayerCase(Conv(512), (256, 7, 7), 32),
    LayerCase(MaxPool(), (32, 28, 28), 128),
    LayerCase(Dense(512, relu=True), (784,), 16),
    LayerCase(Dense(512, relu=True), (784,), 256),
    LayerCase(Block(4), (64, 128), 16),
    LayerCase(Block(4), (64, 256), 4),
    LayerCase(Norm(), (64, 256), 32),
)


def _least_disturbed(timings: list[tuple[float, float]]) -> tuple[float, float]:
    counted = sorted(timings)[: max(1, round(len(timings) * COUNTED_SHARE))]
    return sum(wall for wall, _ in counted) / len(counted), sum(cpu for _, cpu in counted) / len(counted)


def operation_timings(operations: Sequence[Operation]) -> list[TimedOperation]:
    """CPU seconds of each operation on one core; one that this PyTorch refuses is left out."""
    device, timed = torch.device("cpu"), []
    for start in range(0, len(operations), OPERATIONS_TOGETHER):
        calls = {}
        for operation in operations[start : start + OPERATIONS_TOGETHER]:
            with suppress(RuntimeError, NotImplementedError):
                call = call_of(operation, device)
                call()
                calls[operation] = call
        timings: dict[Operation, list[float]] = {operation: [] for operation in calls}
        for _ in range(OPERATION_TURNS):
            for operation, call in calls.items():
                if operation.kind == "update":
                    # What Python takes for it is no part of its bytes: a small model's finds its code in the caches.
                    call()
                started = time.process_time()
                call()
                timings[operation].append(time.process_time() - started)
        timed += [TimedOperation(operation=operation, seconds=median(times)) for operation, times in timings.items()]
    return timed


def _passes(case: LayerCase) -> Callable[[], None]:
    module = build_module((case.layer,), case.shape, channels_last=True).to(memory_format=torch.channels_last)
    inputs = torch.randn(case.batch, *case.shape)
    if len(case.shape) == IMAGE_DIMENSIONS:
        inputs = inputs.to(memory_format=torch.channels_last)
    inputs.requires_grad_(not case.first)
    back = torch.ones_like(module(inputs if case.first else inputs * 1).detach())

    def passes() -> None:
        module.zero_grad(set_to_none=True)
        inputs.grad = None
        # Activations work in place, which a leaf does not allow; in a model it never is one.
        module(inputs.view_as(inputs) if inputs.requires_grad else inputs).backward(back)

    return passes


def scratch_peaks() -> list[dict[str, Any]]:
    """The most that each of some cases held in its passes: in a fork each, since libraries keep what they once took.

    Once each: the C library gives large blocks back at once until the first of them was freed.
    """
    # What PyTorch loads for its first pass is no layer's.
    _passes(LayerCase(Dense(4), (4,), 8))()
    peaks = []
    for case in SCRATCH_CASES:
        peak = _in_a_fork(lambda case=case: _passes_peak(case))  # type: ignore[misc]
        if peak is not None:
            peaks.append({**case.values(), "peak_bytes": peak})
    return peaks


def _passes_peak(case: LayerCase) -> int | None:
    passes = _passes(case)
    start_peak_anew()
    before = resident()
    passes()
    after = resident()
    return after.peak_bytes - before.current_bytes if before and after else None


def _in_a_fork(function: Callable[[], int | None]) -> int | None:
    """The result of a function in a copy of this process; None where it fails."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writing, json.dumps(function()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else None


def collective_timings(sizes: list[int], kinds: list[str]) -> list[dict[str, Any]]:
    """Seconds of each kind of transfer between all ranks, by bytes.

    Sizes take turns, several times over: a burst of other load then spoils a part of each and the whole of none.
    """
    cases = [(kind, size) for kind in kinds for size in sizes]
    transfers = {case: _transfer(*case) for case in cases}
    between = torch.zeros(BETWEEN_BYTES // 4)
    repeats = {case: _agreed_repeats(transfers[case]) for case in cases}
    timings: dict[tuple[str, int], list[tuple[float, float]]] = {case: [] for case in cases}
    for _ in range(TURNS):
        for case in cases:
            transfers[case]()
            for _ in range(repeats[case]):
                between.add_(1.0)
                started, cpu = time.perf_counter(), time.process_time()
                transfers[case]()
                timings[case].append((time.perf_counter() - started, time.process_time() - cpu))
    counted = {case: _least_disturbed(times) for case, times in timings.items()}
    return [
        {"kind": kind, "bytes": size, "seconds": wall, "cpu_seconds": spent}
        for (kind, size), (wall, spent) in counted.items()
    ]


def _transfer(kind: str, size: int) -> Callable[[], Any]:
    tensor = torch.zeros(max(1, size // 4))
    world, rank = dist.get_world_size(), dist.get_rank()
    if kind == "all-reduce":
        return lambda: dist.all_reduce(tensor)
    if kind == "broadcast":
        return lambda: dist.broadcast(tensor, 0)
    if kind == "all-gather":
        parts = list(torch.zeros(world, max(1, tensor.numel() // world)))
        return lambda: dist.all_gather(parts, parts[rank].clone())
    if kind == "reduce-scatter":
        part = torch.zeros(max(1, tensor.numel() // world))
        whole = torch.zeros(part.numel() * world)
        return lambda: REDUCE_SCATTER(part, whole)
    return lambda: _there_and_back(tensor, rank)


def _there_and_back(tensor: Tensor, rank: int) -> None:
    """Sends from the first rank to the second, which answers with one number."""
    word = tensor[:1].clone()
    if rank == 0:
        dist.send(tensor, 1)
        dist.recv(word, 1)
    elif rank == 1:
        dist.recv(tensor, 0)
        dist.send(word, 0)


def _agreed_repeats(transfer: Callable[[], Any]) -> int:
    """All ranks must repeat as often as the first one finds right."""
    transfer()
    started = time.perf_counter()
    transfer()
    repeats = REPEAT_SECONDS / max(1e-6, time.perf_counter() - started) / TURNS
    count = torch.tensor([min(MOST_REPEATS / TURNS, max(float(LEAST_REPEATS) / TURNS, repeats))])
    dist.broadcast(count, 0)
    return int(count)


def interference() -> float:
    """Computation lost in each second of a transfer that it is hidden behind.

    Products are computed while an all-reduce is under way. Both are on the same core, so the computation loses what the
    threads that transfer take of it, over what the transfer takes by itself.
    """
    left, tensor = torch.randn(PRODUCT_SIZE, PRODUCT_SIZE), torch.zeros(HIDDEN_BYTES // 4)
    lost_seconds, transfer_seconds = [], []
    for _ in range(HIDDEN_ROUNDS):
        dist.barrier()
        started = time.perf_counter()
        dist.all_reduce(tensor)
        transfer_seconds.append(time.perf_counter() - started)
        dist.barrier()
        before = time.process_time() - time.thread_time()
        work = dist.all_reduce(tensor, async_op=True)
        while not work.is_completed():
            left @ left
        lost_seconds.append(time.process_time() - time.thread_time() - before)
    share = min(0.97, max(0.0, median(lost_seconds) / median(transfer_seconds)))
    return share / (1 - share)


def _as_json(timed: Sequence[TimedOperation]) -> list[dict[str, Any]]:
    return [row.model_dump(mode="json") for row in timed]


def measure(request: GaugeRequest) -> dict[str, Any]:
    """Takes the measurements that the request names."""
    torch.set_num_threads(1)
    if not request.kinds and request.world > 1:
        # By how much longer one takes is alike within a kind.
        return {"operations": _as_json(operation_timings(core_cases()[::CROWDED_EVERY]))}
    if not request.kinds:
        return {"scratch": scratch_peaks(), "operations": _as_json(operation_timings(core_cases()))}
    store = dist.FileStore(str(request.store), request.world)
    dist.init_process_group("gloo", store=store, rank=request.rank, world_size=request.world, timeout=PATIENCE)
    try:
        return {"collectives": collective_timings(request.sizes, request.kinds), "interference": interference()}
    finally:
        dist.destroy_process_group()
