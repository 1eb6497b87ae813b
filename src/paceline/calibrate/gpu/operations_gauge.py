"""Seconds of operations on a GPU alone, the power that it draws, and what one process was asked to measure."""

import gc
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from paceline.calibrate.gpu import cases
from paceline.calibrate.gpu.calls_gauge import call_of
from paceline.calibrate.gpu.messages import GpuAnswer, GpuRequest, Part, TimedOperation
from paceline.costs.operations import Operation, memory, product
from paceline.frameworks.torch.trace.calls import Call
from paceline.systems.nccl import loaded_nccl, version_text

# The device sleeps so many cycles while the host asks for what is timed, half a millisecond for a million; a backward
# pass by autograd takes the host longer.
SLEEP_CYCLES, LONG_SLEEP_CYCLES = 1_500_000, 6_000_000
# Each operation is repeated for about so long and so often at least and at most; the shorter of two rounds counts.
REPEAT_SECONDS, REPEATS, ROUNDS = 1.5e-3, (2, 12), 2
# Of those that take the host longer there is time to ask for fewer while the device sleeps.
LONG_REPEATS = 5
IDLE_READINGS, READING_SECONDS = 5, 0.1
# What keeps the GPU busy while its power is read: products and passes over memory, as training has both.
BUSY_PRODUCT, BUSY_ELEMENTS = (8192, 4096, 4096), 1 << 26
SETTLING_SHARE = 0.3
MILLI = 1e-3
OPERATION_CASES: dict[Part, Callable[[], list[Operation]]] = {
    "products": cases.product_cases, "convolutions": cases.convolution_cases, "attention": cases.attention_cases,
    "memory": cases.memory_cases, "updates": cases.update_cases,
}  # fmt: skip


@dataclass
class Measuring:
    """One process's measurements so far."""

    request: GpuRequest
    device: torch.device
    answer: dict[str, Any] = field(default_factory=dict)

    def tell(self, text: str) -> None:
        """What is being done just now, for whoever waits."""
        self.request.progress.write_text(text)

    def until(self, part: Part) -> float:
        """When the time for that part ends."""
        return time.monotonic() + self.request.seconds.get(part, 0.0)


def device_seconds(call: Call, device: torch.device, long: bool = False) -> float:
    """Seconds of one call on the device, without those of the host that asks for it."""
    call()
    repeats = 2
    best = _repeated(call, device, repeats, long)
    repeats = int(min(LONG_REPEATS if long else REPEATS[1], max(REPEATS[0], REPEAT_SECONDS / max(best, 1e-9))))
    return min(_repeated(call, device, repeats, long) for _ in range(ROUNDS))


def _repeated(call: Call, device: torch.device, repeats: int, long: bool) -> float:
    if device.type != "cuda":
        started = time.perf_counter()
        for _ in range(repeats):
            call()
        return (time.perf_counter() - started) / repeats
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(LONG_SLEEP_CYCLES if long else SLEEP_CYCLES)
    start.record()
    for _ in range(repeats):
        call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * MILLI / repeats


def time_operations(
    operations: Iterable[Operation], measuring: Measuring, part: Part
) -> tuple[list[TimedOperation], int]:
    """Each operation's seconds, and how many there was no time for; one that this PyTorch refuses is left out."""
    until, timed, late = measuring.until(part), [], 0
    operations = list(operations)
    for number, operation in enumerate(operations):
        if time.monotonic() > until:
            late += 1
            continue
        if number % 50 == 0:
            measuring.tell(f"timing {part}: {number} of {len(operations)}")
        try:
            seconds = device_seconds(call_of(operation, measuring.device), measuring.device, asks_long(operation))
        except (RuntimeError, torch.OutOfMemoryError) as error:
            _forget(measuring, part, operation, error)
            continue
        timed.append(TimedOperation(operation=operation, seconds=seconds))
    _free(measuring.device)
    return timed, late


def asks_long(operation: Operation) -> bool:
    """Whether the host takes long to ask for it: autograd's backward passes, and updates of many arrays."""
    return operation.kind == "update" or (operation.kind == "attention" and operation.backward)


def _forget(measuring: Measuring, part: Part, operation: Operation, error: Exception) -> None:
    words = str(error).strip().splitlines() or [type(error).__name__]
    kind = f"{operation.kind} of {operation.numbers} {'backward ' if operation.backward else ''}{operation.name}"
    measuring.answer.setdefault("failures", {})[f"{part}: {kind.strip()}"] = words[0]
    if isinstance(error, torch.OutOfMemoryError):
        _free(measuring.device)


def _free(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def watts(measuring: Measuring) -> dict[str, float]:
    """What the GPU draws when it idles and when it computes, by NVML."""
    import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)

    def read() -> float:
        return float(pynvml.nvmlDeviceGetPowerUsage(handle)) * MILLI

    torch.cuda.synchronize()
    idle = []
    for _ in range(IDLE_READINGS):
        time.sleep(READING_SECONDS)
        idle.append(read())
    calls = [
        call_of(product("bf16", *BUSY_PRODUCT), measuring.device),
        call_of(memory("bf16", BUSY_ELEMENTS, 3, "add"), measuring.device),
    ]
    began, until, busy = time.monotonic(), measuring.until("power"), []
    while (now := time.monotonic()) < until:
        for _ in range(40):
            for call in calls:
                call()
        torch.cuda.synchronize()
        if now - began > SETTLING_SHARE * (until - began):
            busy.append(read())
    pynvml.nvmlShutdown()
    return {"idle_watts": min(idle), "busy_watts": sum(busy) / len(busy)} if busy else {"idle_watts": min(idle)}


def measure(request: GpuRequest) -> GpuAnswer:
    """Takes the measurements that the request names; one that fails leaves its reason and lets the others go on."""
    device = torch.device("cpu")
    if request.device != "cpu":
        device = torch.device("cuda", request.rank if request.device == "cuda" else 0)
        torch.cuda.set_device(device)
    measuring = Measuring(request, device, _facts(device))
    for part in request.parts:
        try:
            _measure(part, measuring)
        except Exception as error:
            words = str(error).strip().splitlines() or [type(error).__name__]
            measuring.answer.setdefault("failures", {})[part] = words[0]
    return GpuAnswer(**measuring.answer)


def _facts(device: torch.device) -> dict[str, Any]:
    facts: dict[str, Any] = {"torch": torch.__version__, "operations": []}
    if device.type == "cuda":
        about = torch.cuda.get_device_properties(device)
        nccl = loaded_nccl()
        facts |= {"gpu": about.name, "memory_bytes": about.total_memory, "multiprocessors": about.multi_processor_count}
        facts |= {"nccl": version_text(nccl) if nccl else ""}
    return facts


def _measure(part: Part, measuring: Measuring) -> None:
    answer = measuring.answer
    measuring.tell(f"timing {part}")
    if part in OPERATION_CASES:
        request = measuring.request
        fitting = cases.that_fit(OPERATION_CASES[part](), request.share)
        fitting = [case for case in fitting if case.flops <= request.most_flops]
        timed, late = time_operations(fitting, measuring, part)
        answer["operations"] += timed
    elif part == "replay":
        from paceline.calibrate.gpu.model_host_gauge import model_host_timings

        answer["replayed"], late = time_operations(measuring.request.replay, measuring, part)
        answer["model_host"] = model_host_timings(measuring)
    elif part == "power":
        late = 0
        answer.update(watts(measuring))
    elif part == "host":
        from paceline.calibrate.gpu.host_gauge import host_timings

        late = 0
        host_timings(measuring)
    else:
        from paceline.calibrate.gpu.links_gauge import time_links

        late = 0
        time_links(measuring)
    if late:
        answer.setdefault("left_out", {})[part] = late
