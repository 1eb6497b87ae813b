"""Which cores each process gets, and the environment that makes its thread pools and allocator fit them."""

import os
from collections.abc import Mapping

from paceline.contract.context import LOOPBACK_INTERFACE, Process
from paceline.contract.strategy import Role
from paceline.record import Finding
from paceline.spec import RunSpec
from paceline.strategies import strategy
from paceline.units import format_count

_THREAD_POOLS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
# glibc returns large freed blocks to the system and fetches them again in every step; these limits keep them. Measured
# on a 2-core EPYC guest: 1.3 to 1.5 times the images/s of the small CNN, and most of the run-to-run noise gone.
TUNED_ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": str(8 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(16 << 30),
    "MALLOC_TOP_PAD_": str(256 << 20),
}
# What a launcher or a test runner may have left in the environment; a run's processes must not see it.
_FOREIGN = (
    "MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "TF_CONFIG",
    "PYTEST_CURRENT_TEST",
)  # fmt: skip


def lay_out(roles: tuple[Role, ...], cores: tuple[int, ...], cores_per_worker: int) -> tuple[Process, ...]:
    """Numbers the processes and assigns cores in turn; with too few of them, several processes share a core."""
    world, assigned = sum(role.processes for role in roles), 0
    processes: list[Process] = []
    for role in roles:
        for index in range(role.processes):
            count = min(role.workers_each * cores_per_worker, len(cores))
            share = tuple(sorted({cores[(assigned + offset) % len(cores)] for offset in range(count)}))
            assigned += count
            device = index * role.workers_each
            rank = len(processes)
            processes.append(Process(rank, world, role.name, index, share, role.workers_each, device=device))
    return tuple(processes)


def lay_out_run(spec: RunSpec, cores: tuple[int, ...]) -> tuple[Process, ...]:
    """The processes of a run on the cores of one machine."""
    roles = strategy(spec.strategy).needs.roles(spec)
    return lay_out(roles, cores, cores_each(spec, roles, cores))


def cores_each(spec: RunSpec, roles: tuple[Role, ...], cores: tuple[int, ...]) -> int:
    """CPU cores of a worker. One that computes on a GPU has several threads to feed it, so all cores are shared out."""
    if spec.device == "cpu":
        return spec.cores_per_worker
    return max(spec.cores_per_worker, len(cores) // sum(role.processes * role.workers_each for role in roles))


def oversubscription(roles: tuple[Role, ...], cores: tuple[int, ...], spec: RunSpec) -> Finding | None:
    """The finding that says that processes share cores."""
    wanted = sum(role.processes * role.workers_each for role in roles) * spec.cores_per_worker
    if spec.device != "cpu" or wanted <= len(cores):
        return None
    counts = " and ".join(format_count(role.processes * role.workers_each, role.name) for role in roles)
    return Finding(
        code="oversubscribed",
        text=f"{counts} of {format_count(spec.cores_per_worker, 'core')} each want {wanted} cores; "
        f"{'its machines have' if spec.machines else 'this machine has'} {len(cores)}",
        hint="times are of an oversubscribed machine; scaling efficiency leaves them out",
    )


def process_environment(spec: RunSpec, process: Process, base: Mapping[str, str]) -> dict[str, str]:
    """The environment variables of one process."""
    env = {name: value for name, value in base.items() if name not in _FOREIGN}
    # A worker that computes on a GPU needs its cores for the threads that feed it, not for pools that compute.
    threads = str(1 if spec.device != "cpu" and process.role == "worker" else max(1, len(process.cores)))
    env |= dict.fromkeys(_THREAD_POOLS, threads)
    # NumPy's own pool, which no strategy computes with, starts its threads when it is imported; see `fork_server.py`.
    env |= {"OPENBLAS_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": process.place.interface, "PYTHONUNBUFFERED": "1"}
    if process.place.interface != LOOPBACK_INTERFACE:
        # NCCL looks for an interface by itself; the user's own choice goes before the fleet's.
        env.setdefault("NCCL_SOCKET_IFNAME", process.place.interface)
    if spec.allocator == "tuned":
        env |= TUNED_ALLOCATOR
    if spec.device == "cpu":
        env["CUDA_VISIBLE_DEVICES"] = ""
    return env | strategy(spec.strategy).needs.environment(spec, process)


def pin(process: Process) -> None:
    """Binds the calling process to its cores."""
    os.sched_setaffinity(0, process.cores)
