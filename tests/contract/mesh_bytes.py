"""Counts what each rank of a torch-mesh run hands to the process groups in a step, and what its sockets then send.

Used as a script by `test_torch_mesh_bytes.py`: takes runs as JSON, prints for each run and rank the payload bytes by
dimension of the mesh, and the bytes that TCP sent.
"""

import json
import multiprocessing
import os
import socket
import stat
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch.distributed as dist
import torch.distributed.fsdp
import torch.distributed.pipelining
import torch.distributed.tensor.parallel
from torch.utils._python_dispatch import TorchDispatchMode

from paceline.contract.context import Context, Process, Rendezvous
from paceline.plan import complete
from paceline.spec import RunSpec
from paceline.strategies import strategy

STEPS_BEFORE, STEPS_ON_THE_WIRE = 1, 2
# What a step handed over has left by then.
QUIET_SECONDS = 0.3
# Where `tcpi_bytes_sent` is in `struct tcp_info` (linux/tcp.h, since 4.19), an unsigned number of eight bytes.
BYTES_SENT = slice(200, 208)
# How the names of operations begin that send something.
SENDING = (
    "all_gather",
    "allgather",
    "all_reduce",
    "allreduce",
    "reduce_scatter",
    "broadcast",
    "send",
    "alltoall",
    "all_to_all",
)


class PayloadCounter(TorchDispatchMode):
    """Bytes of the whole payload of each collective, and of each tensor sent, by the group that carries it."""

    def __init__(self, groups: dict[str, str]) -> None:
        super().__init__()
        self._groups = groups
        self.payload_bytes: dict[str, int] = defaultdict(int)

    # Such as what keeps the state of random numbers.
    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled blocks stay so, and what they send is seen."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, torch.distributed.tensor.DTensor) for kind in types):
            return NotImplemented  # so that what it does within is seen too
        result = func(*args, **(kwargs or {}))
        space, _, name = func.name().partition("::")
        if space in ("c10d", "_c10d_functional") and name.lstrip("_").startswith(SENDING):
            # What is exchanged comes in another size than it leaves.
            exchanged = name.lstrip("_").startswith(("alltoall", "all_to_all"))
            given = args[space == "c10d"] if exchanged else None
            payload = given.nbytes if given is not None else _payload(args, result)
            self.payload_bytes[self._groups[_group_name(args)]] += payload
        return result


def _group_name(args: Any) -> str:
    for argument in args:
        if isinstance(argument, torch.ScriptObject) and "ProcessGroup" in str(argument._type()):
            return str(dist.ProcessGroup.unbox(argument).group_name)
    return next(argument for argument in reversed(args) if isinstance(argument, str))


def _payload(args: Any, result: Any) -> int:
    """The larger side: what is gathered, or what is scattered or reduced."""
    tensors = [one for one in torch.utils._pytree.tree_leaves((args, result)) if isinstance(one, torch.Tensor)]
    return max((one.nbytes for one in tensors), default=0)


def _group_names(groups: Any) -> dict[str, str]:
    """What each process group of a rank is for."""
    names = {groups.mesh.get_group(name).group_name: name for name in groups.mesh.mesh_dim_names}
    if groups.stretch.group is not None:
        names[groups.stretch.group.group_name] = "context"
    if groups.experts is not None:
        names[groups.experts.get_group("expert").group_name] = "expert"
        # Of the same ranks where one of the two has all of them.
        for name in ("replicate", "shard"):
            names.setdefault(groups.experts.get_group(name).group_name, f"{name} of experts")
    return names


def bytes_sent() -> int:
    """By all connections of this process since they were made, without headers and without what was sent twice."""
    total = 0
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if not stat.S_ISSOCK(entry.stat().st_mode):
                continue
            with socket.socket(fileno=os.dup(int(entry.name))) as one:
                if one.family in (socket.AF_INET, socket.AF_INET6) and one.type == socket.SOCK_STREAM:
                    facts = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, BYTES_SENT.stop)
                    total += int.from_bytes(facts[BYTES_SENT], sys.byteorder)
    return total


def count(spec: RunSpec, rank: int, port: int, folder: Path, told: Any) -> None:
    world = spec.workers
    context = Context(spec, Process(rank, world, "worker", rank, (0,)), Rendezvous("127.0.0.1", port, None, folder))
    torch.set_num_threads(1)
    job: Any = strategy(spec.strategy).open_job(context)
    job.start_epoch(0)
    job.step(0, STEPS_BEFORE)
    counter = PayloadCounter(_group_names(job._stages.groups))
    with counter:
        job.step(STEPS_BEFORE, 1)
    job.align()
    time.sleep(QUIET_SECONDS)
    before = bytes_sent()
    job.step(STEPS_BEFORE + 1, STEPS_ON_THE_WIRE)
    time.sleep(QUIET_SECONDS)
    wire = (bytes_sent() - before) / STEPS_ON_THE_WIRE
    told.put((rank, {"payload": dict(counter.payload_bytes), "wire": wire}))
    job.align()
    job.close()


def main(runs: list[dict[str, Any]]) -> None:
    processes = multiprocessing.get_context("fork")
    for fields in runs:
        spec = complete(RunSpec.parse(fields, "bytes"))
        told = processes.Queue()
        with socket.socket() as free, tempfile.TemporaryDirectory() as folder:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
            free.close()
            ranks = [processes.Process(target=count, args=(spec, rank, port, Path(folder), told))
                     for rank in range(spec.workers)]  # fmt: skip
            for process in ranks:
                process.start()
            found = sorted((told.get(timeout=60) for _ in ranks), key=lambda item: item[0])
            for process in ranks:
                process.join()
        sys.stdout.write(json.dumps([payload for _, payload in found]) + "\n")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
