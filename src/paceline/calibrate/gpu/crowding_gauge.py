"""How much longer operations take on a slice of a GPU while the other slices compute too.

Slices have multiprocessors of their own and share memory, its cache and the power that the GPU may draw. What that
costs depends on the operation, so that each kind is timed, and passes over memory by name.
"""

import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from paceline.calibrate.gpu.calls_gauge import call_of
from paceline.calibrate.gpu.cases import MEMORY_NAMES, arrays_of
from paceline.calibrate.gpu.operations_gauge import device_seconds
from paceline.costs.operations import Operation, attention, convolution, memory, product
from paceline.frameworks.torch.trace.calls import Call

# More than the cache holds.
ELEMENTS = 1 << 25
# A GPU lowers its clock some tenths of a second after it starts to draw more power than it may; passes over memory
# draw less.
SETTLING_SECONDS, TIMED_SECONDS, BRIEF_SECONDS = 0.3, 0.2, 0.015
LEAST_CALLS = 4
# A block of a transformer, width 1,024, with 8,192 tokens: products alone would draw more power than training does,
# and the clock would be lower.
TOKENS, WIDTH = 8192, 1024
BLOCK = (
    memory("bf16", TOKENS * WIDTH, 2, "native_layer_norm"), product("bf16", TOKENS, 3 * WIDTH, WIDTH),
    attention("bf16", 8, (16, 16), (1024, 1024), 64, causal=True), product("bf16", TOKENS, WIDTH, WIDTH),
    memory("bf16", TOKENS * WIDTH, 3, "add"), memory("bf16", TOKENS * WIDTH, 2, "native_layer_norm"),
    product("bf16", TOKENS, 4 * WIDTH, WIDTH), memory("bf16", TOKENS * 4 * WIDTH, 2, "gelu"),
    product("bf16", TOKENS, WIDTH, 4 * WIDTH), memory("bf16", TOKENS * WIDTH, 3, "add"),
)  # fmt: skip
ARITHMETIC = {
    "convolution": convolution("bf16", (64, 256, 14, 14, 256, 3, 3, 1, 1)),
    "attention": attention("bf16", 8, (12, 12), (1024, 1024), 64, causal=True),
}


def time_crowding(device: torch.device) -> dict[str, float]:
    """Seconds with all ranks at work over seconds alone: by kind of operation, and by name of passes over memory."""
    factors: dict[str, float | None] = {"product": _products_of_blocks(device)}
    for kind, operation in ARITHMETIC.items():
        factors[kind] = _crowded(operation, device, SETTLING_SECONDS, TIMED_SECONDS)
    for name, (_, backward) in MEMORY_NAMES.items():
        operation = memory("bf16", ELEMENTS, arrays_of(name, "bf16"), name, backward=backward)
        factors[name] = _crowded(operation, device, BRIEF_SECONDS, BRIEF_SECONDS)
    return {name: round(factor, 3) for name, factor in factors.items() if factor is not None}


def _products_of_blocks(device: torch.device) -> float:
    """Seconds of products with all ranks at work over seconds alone, among the other operations of a block."""
    calls = [(operation.kind == "product", call_of(operation, device)) for operation in BLOCK]

    def block() -> list[tuple[torch.cuda.Event, torch.cuda.Event]]:
        timed = []
        for is_product, call in calls:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            call()
            end.record()
            timed += [(start, end)] if is_product else []
        return timed

    def seconds(settling: int, counted: int) -> float:
        for _ in range(settling):
            block()
        timed = [pair for _ in range(counted) for pair in block()]
        torch.cuda.synchronize()
        return float(sum(start.elapsed_time(end) for start, end in timed))

    once = device_seconds(block, device)
    counts = _same_on_all([SETTLING_SECONDS / once, TIMED_SECONDS / once], device)
    return _together_over_alone(lambda: seconds(*counts))


def _same_on_all(counts: list[float], device: torch.device) -> list[int]:
    """Every rank makes as many calls as the first, which is the one that counts."""
    shared = torch.tensor([max(LEAST_CALLS, count) for count in counts], device=device)
    dist.broadcast(shared, 0)
    return [int(count) for count in shared.tolist()]


def _together_over_alone(seconds: Callable[[], float]) -> float:
    dist.barrier()
    alone = seconds() if dist.get_rank() == 0 else 0.0
    dist.barrier()
    together = seconds()
    dist.barrier()
    return max(1.0, together / alone) if alone else 1.0


def _crowded(operation: Operation, device: torch.device, settling: float, timed: float) -> float | None:
    """By which factor other slices slow an operation; None where this PyTorch refuses it, as it does on every rank."""
    try:
        call = call_of(operation, device)
        once = device_seconds(call, device)
    except (RuntimeError, torch.OutOfMemoryError):
        return None
    before, counted = _same_on_all([settling / once, timed / once], device)
    return _together_over_alone(lambda: _seconds(call, before, counted))


def _seconds(call: Call, before: int, counted: int) -> float:
    """Seconds of one call, averaged over `counted` calls after `before` untimed ones."""
    for _ in range(before):
        call()
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(counted):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - started) / counted
