"""Transfers between GPUs, or slices of one, by NCCL; and what they and other ranks take from computation."""

import os
import time
from collections.abc import Callable
from datetime import timedelta
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from paceline.calibrate.gpu.calls_gauge import call_of
from paceline.calibrate.gpu.crowding_gauge import time_crowding
from paceline.calibrate.gpu.messages import TimedTransfer
from paceline.calibrate.gpu.operations_gauge import MILLI, Measuring
from paceline.costs.operations import memory, product
from paceline.systems.nccl import BOUNDS, loaded_nccl, slice_link, slice_multiprocessors

PATIENCE = timedelta(seconds=60)
# 1 kB to 256 MB, four times as much each.
SIZES = tuple(1 << power for power in range(10, 29, 2))
KINDS = ("all-reduce", "all-gather", "reduce-scatter", "send", "broadcast", "all-to-all")
REPEAT_SECONDS, REPEATS, ROUNDS = 4e-3, (3, 20), 2
# What is computed while gradients of this size are averaged.
HIDDEN_BYTES, HIDDEN_PRODUCT = 64 << 20, (4096, 4096, 4096)
HIDDEN_ELEMENTS = 1 << 24
HIDDEN_ROUNDS, LEAST_PRODUCTS = 4, 4
# What is computed takes so many times as long as the transfers alone.
LONGER = 5
# Newer versions of PyTorch have other names for them.
REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def time_links(measuring: Measuring) -> None:
    """Joins the other ranks and times every kind of transfer by bytes, then both at once with computation."""
    request, device = measuring.request, measuring.device
    cuda = device.type == "cuda"
    if request.device == "cuda-slice":
        link = slice_link(loaded_nccl(), "auto")
        for name, value in link.environment(request.rank, slice_multiprocessors()).items():
            if name not in BOUNDS or name not in os.environ:
                os.environ[name] = value
    store = dist.FileStore(str(request.store), request.world)
    backend = "nccl" if cuda else "gloo"
    dist.init_process_group(backend, store=store, rank=request.rank, world_size=request.world, timeout=PATIENCE)
    try:
        measuring.answer["transfers"] = _transfers(measuring)
        if cuda:
            measuring.tell("timing computation beside transfers")
            measuring.answer["crowding"] = time_crowding(device)
            measuring.answer["interference"], measuring.answer["overlap_slowdown"] = _overlap(device)
    finally:
        dist.destroy_process_group()


def _transfers(measuring: Measuring) -> list[TimedTransfer]:
    device, timed, until = measuring.device, [], measuring.until("links")
    for kind in KINDS:
        if device.type != "cuda" and kind == "all-to-all":
            continue
        for size in SIZES:
            # All ranks leave at the same time.
            if not _all_agree(time.monotonic() < until, device):
                continue
            measuring.tell(f"timing {kind} of {measuring.request.world}")
            seconds = _seconds(_transfer(kind, size, device), device)
            timed.append(TimedTransfer(kind=kind, payload_bytes=size, seconds=seconds))
    return timed


def _all_agree(answer: bool, device: torch.device) -> bool:
    vote = torch.tensor([int(answer)], device=device)
    dist.all_reduce(vote, dist.ReduceOp.MIN)
    return bool(vote.item())


def _transfer(kind: str, size: int, device: torch.device) -> Callable[[], Any]:
    """A call that transfers the payload; for gathers and scatters the payload is the whole array."""
    world, rank = dist.get_world_size(), dist.get_rank()
    part = torch.ones(max(1, size // 4 // world), device=device)
    whole = torch.ones(part.numel() * world, device=device)
    calls: dict[str, Callable[[], Any]] = {
        "all-reduce": lambda: dist.all_reduce(whole),
        "broadcast": lambda: dist.broadcast(whole, 0),
        "all-gather": lambda: ALL_GATHER(whole, part),
        "reduce-scatter": lambda: REDUCE_SCATTER(part, whole),
        "send": lambda: _send(whole, rank),
    }
    if kind == "all-to-all":
        received = torch.empty_like(whole)
        return lambda: dist.all_to_all_single(received, whole)
    return calls[kind]


def _send(payload: torch.Tensor, rank: int) -> None:
    """Sends from the first rank to the second; the other ranks do nothing."""
    if rank == 0:
        dist.send(payload, 1)
    elif rank == 1:
        dist.recv(payload, 0)


def _seconds(transfer: Callable[[], Any], device: torch.device) -> float:
    """Seconds of one transfer, averaged over several in a row; the slowest rank counts."""
    transfer()
    first = _slowest(_row(transfer, 2, device), device)
    repeats = int(min(REPEATS[1], max(REPEATS[0], REPEAT_SECONDS / max(first, 1e-9))))
    return min(_slowest(_row(transfer, repeats, device), device) for _ in range(ROUNDS))


def _row(transfer: Callable[[], Any], repeats: int, device: torch.device) -> float:
    _synchronise(device)
    dist.barrier()
    _synchronise(device)
    started = time.perf_counter()
    for _ in range(repeats):
        transfer()
    _synchronise(device)
    return (time.perf_counter() - started) / repeats


def _slowest(seconds: float, device: torch.device) -> float:
    value = torch.tensor([seconds], dtype=torch.float64, device=device)
    dist.all_reduce(value, dist.ReduceOp.MAX)
    return float(value.item())


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _overlap(device: torch.device) -> tuple[float, float]:
    """What computing and transfers take from each other while both are under way, as in a backward pass.

    Seconds of computation that are lost in each second of a transfer, and how many times as long a transfer takes.
    """
    product_call = call_of(product("bf16", *HIDDEN_PRODUCT), device)
    memory_call = call_of(memory("bf16", HIDDEN_ELEMENTS, 3, "add"), device)
    payload, waiting = torch.ones(HIDDEN_BYTES // 4, device=device), torch.cuda.Stream(device)

    def seconds(products: int, transfers: int) -> tuple[float, float]:
        """Seconds until all computation is done, and until all transfers are done."""
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        start, computed, moved = (torch.cuda.Event(enable_timing=True) for _ in range(3))
        start.record()
        works = [dist.all_reduce(payload, async_op=True) for _ in range(transfers)]
        for _ in range(products):
            product_call()
            memory_call()
        computed.record()
        with torch.cuda.stream(waiting):
            for work in works:
                work.wait()
            moved.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(computed)) * MILLI, float(start.elapsed_time(moved)) * MILLI

    seconds(LEAST_PRODUCTS, HIDDEN_ROUNDS)
    alone = min(seconds(0, HIDDEN_ROUNDS)[1] for _ in range(HIDDEN_ROUNDS))
    each = seconds(LEAST_PRODUCTS, 0)[0] / LEAST_PRODUCTS
    # Longer than the transfers will take, so that they meet all the while; every rank computes as many.
    count = torch.tensor([max(LEAST_PRODUCTS, LONGER * alone / each)], device=device)
    dist.all_reduce(count, dist.ReduceOp.MAX)
    products, lost, slowed = int(count.item()), [], []
    for _ in range(HIDDEN_ROUNDS):
        plain, _none = seconds(products, 0)
        busy, moved = seconds(products, HIDDEN_ROUNDS)
        lost.append(max(0.0, busy - plain) / min(moved, busy))
        slowed.append(max(1.0, moved / alone))
    return median(lost), median(slowed)
