"""How much longer operations take on a slice of a GPU while the other slices compute too.

Slices have multiprocessors of their own and share memory, its cache and the power that the GPU may draw. What that
costs depends on the operation, so that each kind is timed, and passes over memory by name.
"""

import time

import torch
import torch.distributed as dist

from paceline.calibrate.gpu.calls_gauge import Call, call_of
from paceline.calibrate.gpu.cases import MEMORY_NAMES, arrays_of
from paceline.calibrate.gpu.operations_gauge import device_seconds
from paceline.costs.operations import Operation, attention, convolution, memory, product

# More than the cache holds.
ELEMENTS = 1 << 25
# A GPU lowers its clock some tenths of a second after it starts to draw more power than it may; passes over memory
# draw less.
SETTLING_SECONDS, TIMED_SECONDS, BRIEF_SECONDS = 0.3, 0.2, 0.015
LEAST_CALLS = 4
ARITHMETIC = {
    "product": product("bf16", 4096, 4096, 4096),
    "convolution": convolution("bf16", (64, 256, 14, 14, 256, 3, 3, 1, 1)),
    "attention": attention("bf16", 8, (12, 12), (1024, 1024), 64, causal=True),
}


def time_crowding(device: torch.device) -> dict[str, float]:
    """Seconds with all ranks at work over seconds alone: by kind of operation, and by name of passes over memory."""
    factors = {}
    for kind, operation in ARITHMETIC.items():
        factors[kind] = _crowded(operation, device, SETTLING_SECONDS, TIMED_SECONDS)
    for name, (_, backward) in MEMORY_NAMES.items():
        operation = memory("bf16", ELEMENTS, arrays_of(name, "bf16"), name, backward=backward)
        factors[name] = _crowded(operation, device, BRIEF_SECONDS, BRIEF_SECONDS)
    return {name: round(factor, 3) for name, factor in factors.items() if factor is not None}


def _crowded(operation: Operation, device: torch.device, settling: float, timed: float) -> float | None:
    """None where this PyTorch refuses the operation, which it does on every rank."""
    try:
        call = call_of(operation, device)
        once = device_seconds(call, device)
    except (RuntimeError, torch.OutOfMemoryError):
        return None
    # Every rank makes as many calls as the first, which is the one that counts.
    counts = torch.tensor([max(LEAST_CALLS, seconds / once) for seconds in (settling, timed)], device=device)
    dist.broadcast(counts, 0)
    before, counted = (int(count) for count in counts.tolist())
    alone = _seconds(call, before, counted) if dist.get_rank() == 0 else 0.0
    dist.barrier()
    together = _seconds(call, before, counted)
    dist.barrier()
    return max(1.0, together / alone) if alone else 1.0


def _seconds(call: Call, before: int, counted: int) -> float:
    """Of one of so many calls, behind others that nobody times."""
    for _ in range(before):
        call()
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(counted):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - started) / counted
