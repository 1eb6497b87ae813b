"""What can be said about JAX runs without importing JAX: fields, devices, processes, and how arrays are divided."""

from paceline.contract.context import Process
from paceline.contract.recompute import why_not_recomputed
from paceline.contract.strategy import Knob, Needs, Role
from paceline.spec import RunSpec
from paceline.systems import System

PRELOAD = ("jax", "jax.numpy")

STEPS_PER_EXECUTION = Knob("steps_per_execution", 1, "optimizer steps in one call of the compiled function")
# Fields of a run that the step of `JaxJob` heeds.
STEP_FIELDS = frozenset({"accumulation", "recompute", "clip", "checkpoint_every"})
# With fewer threads, devices of one process wait for each other's part of an exchange for ever: steps are asked for
# ahead, and each device has up to two exchanges under way (tried with XLA of JAX 0.10, 2 and 4 devices on 2 cores).
THREADS_PER_DEVICE = 2
PROCESSES = Knob("processes", False, "a process for each worker (jax.distributed) instead of one that drives all")


def steps_per_call(spec: RunSpec) -> int:
    """Optimizer steps in one call of the compiled function."""
    return int(spec.knobs.get(STEPS_PER_EXECUTION.name, STEPS_PER_EXECUTION.default))


def check(spec: RunSpec, _system: System) -> str | None:
    """Why no JAX strategy can make such a run, in words, or None."""
    if spec.memory_format == "contiguous":
        return "JAX strategies keep images channels-last (memory_format channels_last) and have no other format"
    if spec.optimizer.name == "lbfgs":
        return f"{spec.strategy} offers adam, adamw, sgd and adagrad; L-BFGS is offered by torch-single"
    if steps_per_call(spec) < 1:
        return f"steps_per_execution of {spec.strategy} must be at least 1"
    return check_recompute(spec)


def check_recompute(spec: RunSpec) -> str | None:
    """Why such a run cannot recompute activations, in words, or None."""
    if spec.recompute != "none" and spec.model is not None:
        return (
            f"{spec.strategy} cannot see the layers of {spec.model.label}; leave recompute out, and put "
            f"jax.checkpoint (in Flax nnx.remat or nn.remat) around them yourself"
        )
    return why_not_recomputed(spec)


def why_not_read(spec: RunSpec) -> str | None:
    """Why such a run cannot read data while it trains, in words, or None."""
    if steps_per_call(spec) > 1:
        return f"and {spec.strategy} is handed a batch in each step; leave steps_per_execution out"
    if spec.accumulation > 1:
        return f"and {spec.strategy} takes the parts of several passes from data on its devices; leave accumulation out"
    return None


def batch_parts(spec: RunSpec, replicas: int | None = None) -> int:
    """Parts of a batch with statistics of their own: one pass is over all devices, each of several over one's share."""
    return 1 if spec.accumulation == 1 else spec.accumulation * (replicas or spec.workers)


def in_processes(spec: RunSpec) -> bool:
    """Whether each worker has a process of its own, as on slices of a GPU and on several machines."""
    several = spec.device == "cuda-slice" or spec.several_machines
    return several or bool(spec.knobs.get("processes", PROCESSES.default))


def roles(spec: RunSpec) -> tuple[Role, ...]:
    """One process with a device for each worker, or a process for each."""
    return (Role("worker", spec.workers) if in_processes(spec) else Role("worker", 1, workers_each=spec.workers),)


def environment(spec: RunSpec, process: Process) -> dict[str, str]:
    """Devices of the process; read when JAX is imported or makes its devices."""
    if spec.device == "cpu":
        devices = 1 if in_processes(spec) else spec.workers
        threads = max(len(process.cores), THREADS_PER_DEVICE * devices if devices > 1 else 1)
        # NPROC is the size of XLA's thread pool.
        return {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices), "NPROC": str(threads)}
    # JAX would take three quarters of the GPU's memory at once, and memory could not be compared between strategies.
    return {"JAX_PLATFORMS": "cuda,cpu", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def is_out_of_memory(error: BaseException) -> bool:
    """XLA has one type for all that fails on a device; the status code at the start of its text tells what did."""
    if isinstance(error, MemoryError):
        return True
    return type(error).__name__ in ("JaxRuntimeError", "XlaRuntimeError") and str(error).startswith(
        "RESOURCE_EXHAUSTED"
    )


NEEDS = Needs(
    precisions=("fp32", "tf32", "bf16"),
    # A step is always compiled by `jax.jit`: that is how JAX is used.
    executions=("eager",),
    heeds=STEP_FIELDS,
    reads=frozenset({"arrays", "memmap", "dataset"}),
    why_not_read=why_not_read,
    roles=roles,
    environment=environment,
    check=check,
    is_out_of_memory=is_out_of_memory,
)
