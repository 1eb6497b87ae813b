"""What can be said about JAX runs without importing JAX: fields, devices, processes, and how arrays are divided."""

from dataclasses import replace

from paceline.footprint import (
    FLOAT_BYTES,
    Footprint,
    Message,
    ModelFacts,
    RankFootprint,
    all_reduce,
    reduce_scatter,
    training_flops,
)
from paceline.spec import Execution, Optimizer, Precision, RunSpec
from paceline.strategies.base import Knob, Process, Role

PRELOAD = ("jax", "jax.numpy")
PRECISIONS: tuple[Precision, ...] = ("fp32", "tf32", "bf16")
# A step is always compiled by `jax.jit`: that is how JAX is used.
EXECUTIONS: tuple[Execution, ...] = ("eager",)

STEPS_PER_EXECUTION = Knob("steps_per_execution", 1, "optimizer steps in one call of the compiled function")
PROCESSES = Knob("processes", False, "a process for each worker (jax.distributed) instead of one that drives all")


def check_fields(spec: RunSpec) -> str | None:
    """Fields that no JAX strategy can honour."""
    if spec.memory_format == "contiguous":
        return "JAX strategies keep images channels-last (memory_format channels_last) and have no other format"
    if spec.optimizer.name == "lbfgs":
        return f"{spec.strategy} offers adam, sgd and adagrad; L-BFGS is offered by torch-single"
    if int(spec.knobs.get("steps_per_execution", 1)) < 1:
        return f"steps_per_execution of {spec.strategy} must be at least 1"
    return None


def in_processes(spec: RunSpec) -> bool:
    """Whether each worker has a process of its own; a slice of a GPU always has."""
    return spec.device == "cuda-slice" or bool(spec.knobs.get("processes", PROCESSES.default))


def roles(spec: RunSpec) -> tuple[Role, ...]:
    """One process with a device for each worker, or a process for each."""
    return (Role("worker", spec.workers) if in_processes(spec) else Role("worker", 1, workers_each=spec.workers),)


def environment(spec: RunSpec, process: Process) -> dict[str, str]:
    """Devices of the process; read when JAX is imported or makes its devices."""
    if spec.device == "cpu":
        devices = 1 if in_processes(spec) else spec.workers
        # NPROC is the size of XLA's thread pool.
        return {
            "JAX_PLATFORMS": "cpu",
            "JAX_NUM_CPU_DEVICES": str(devices),
            "NPROC": str(max(1, len(process.cores))),
        }
    # JAX would take three quarters of the GPU's memory at once, and memory could not be compared between strategies.
    return {"JAX_PLATFORMS": "cuda,cpu", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def is_out_of_memory(error: BaseException) -> bool:
    """XLA has one type for all that fails on a device; the status code at the start of its text tells what did."""
    if isinstance(error, MemoryError):
        return True
    return type(error).__name__ in ("JaxRuntimeError", "XlaRuntimeError") and str(error).startswith(
        "RESOURCE_EXHAUSTED"
    )


def optimizer_bytes(settings: Optimizer, parameters: float) -> float:
    """State beside the parameters on one device: Adam also counts steps, in one number for all arrays."""
    match settings.name:
        case "adam":
            return 2 * parameters * FLOAT_BYTES + FLOAT_BYTES
        case "adagrad":
            return parameters * FLOAT_BYTES
        case _:
            return parameters * FLOAT_BYTES if settings.momentum else 0


def divided_dimension(shape: tuple[int, ...], ways: int) -> int | None:
    """The largest dimension that divides over the devices; None if none does or there is nothing to divide."""
    sizes = [size if size % ways == 0 and size >= ways else 0 for size in shape]
    return sizes.index(max(sizes)) if ways > 1 and any(sizes) else None


def scattered_reduction(spec: RunSpec, name: str, payload_bytes: float, ranks: int) -> tuple[Message, ...]:
    """A reduce-scatter; for CPU devices XLA makes none: it sums everything everywhere and each keeps its part."""
    return (all_reduce if spec.device == "cpu" else reduce_scatter)(name, payload_bytes, ranks)


def worker_footprint(
    spec: RunSpec, model: ModelFacts, messages: tuple[Message, ...], held: float, gathered_bytes: float = 0
) -> Footprint:
    """Equal workers that each train on their share of the batch and hold `held` of the parameters."""
    local = spec.samples_per_step // spec.workers
    worker = RankFootprint(
        role="worker",
        ranks=spec.workers,
        flops=training_flops(model, local),
        messages=messages,
        parameter_bytes=held * FLOAT_BYTES,
        gradient_bytes=model.parameter_bytes,
        optimizer_bytes=optimizer_bytes(spec.optimizer, held),
        # Gathered parameters come and go within a step as activations do.
        activation_bytes=model.activation_bytes * local + gathered_bytes,
    )
    return Footprint((worker,))


def with_one_counter(footprint: Footprint, spec: RunSpec) -> Footprint:
    """A footprint with the optimizer state as it is in JAX."""
    return Footprint(
        tuple(
            replace(group, optimizer_bytes=optimizer_bytes(spec.optimizer, group.parameter_bytes / FLOAT_BYTES))
            for group in footprint.groups
        )
    )
