"""What can be said about PyTorch runs without importing PyTorch first."""

from dataclasses import replace

from paceline.contract.context import spec_facts
from paceline.contract.strategy import Needs
from paceline.spec import Execution, Precision, RunSpec
from paceline.systems import System

# What PyTorch imports lazily in most runs; a template process imports it once for all of them.
PRELOAD = ("torch", "torch._dynamo", "torch.distributed", "torch.nn.parallel")
# Of strategies whose whole step can be recorded as a CUDA graph.
GRAPH_EXECUTIONS: tuple[Execution, ...] = ("eager", "compiled", "graph", "compiled+graph")


# Fields of a run that one training step of `TorchJob` heeds.
STEP_FIELDS = frozenset({"accumulation", "recompute", "clip", "checkpoint_every"})


# The same of strategies whose workers train in step, each on its share: with them, training is that of one worker.
EQUAL_FIELDS = frozenset({"batch_norm", "dropout"})


def check_equality(spec: RunSpec) -> str | None:
    """Why such a run cannot draw dropout by sample, in words, or None."""
    if spec.dropout == "by-worker" or (spec.execution == "eager" and spec.recompute == "none"):
        return None
    return (
        f"dropout by-sample replaces dropout as it runs, which execution {spec.execution} with recompute "
        f"{spec.recompute} would not see; use execution eager and recompute none"
    )


def check_step(spec: RunSpec, system: System) -> str | None:
    """Why `TorchJob` cannot make such a step, in words, or None."""
    return (
        check_decay(spec)
        or check_noise(spec)
        or check_graph(spec, system)
        or check_recompute(spec)
        or check_precision(spec)
        or check_equality(spec)
    )


def check_decay(spec: RunSpec) -> str | None:
    """Why such a run cannot decay its weights, in words, or None."""
    if spec.optimizer.name == "lbfgs" and spec.optimizer.weight_decay:
        return f"{spec.strategy} has no weight_decay with optimizer lbfgs; leave it out, or use adamw or sgd"
    return None


def check_noise(spec: RunSpec) -> str | None:
    """Why such a run cannot measure the noise of its gradients, in words, or None."""
    if not spec.noise_scale:
        return None
    if spec.workers == 1 and spec.accumulation == 1:
        return (
            f"noise_scale of {spec.strategy} on one worker compares the gradients of a part of the batch with those of "
            f"all of it, and there is one pass; use accumulation 2 or more, or more workers"
        )
    if spec.execution != "eager" or spec.reduction is not None or spec.membership is not None:
        others = {"execution": spec.execution, "reduction": spec.reduction, "membership": spec.membership}
        named = next(name for name, value in others.items() if value not in (None, "eager"))
        return f"noise_scale of {spec.strategy} was not tried with {named}; leave {named} out"
    return None


def check_recompute(spec: RunSpec) -> str | None:
    """Why such a run cannot recompute activations, in words, or None."""
    if spec.recompute == "none":
        return None
    if "graph" in spec.execution:
        return f"recompute {spec.recompute} was not tried with execution {spec.execution}; use eager or compiled"
    if spec.model is None and not any(layer.heads for layer in spec_facts(spec).layers):
        return (
            f"{spec.workload} has no transformer blocks whose activations could be computed again; "
            f"leave recompute out, or use a workload that has"
        )
    return None


def check_precision(spec: RunSpec) -> str | None:
    """Why such a run cannot use two-byte precisions or offloading, in words, or None."""
    if spec.offload and spec.device == "cpu":
        return (
            f"offload of {spec.strategy} moves what a GPU does not need into the host's memory, where device "
            f"cpu has it; leave it out"
        )
    if spec.precision != "fp16":
        return None
    if "graph" in spec.execution:
        return (
            f"{spec.strategy} asks in each step of precision fp16 whether it may be made, which {spec.execution} "
            f"cannot; use bf16"
        )
    if spec.optimizer.name == "lbfgs":
        return "precision fp16 may skip a step, which L-BFGS cannot take back; use bf16, or another optimizer"
    return None


def check_graph(spec: RunSpec, _system: System) -> str | None:
    """Why such a step cannot be recorded as a CUDA graph, in words, or None."""
    if "graph" not in spec.execution:
        return None
    if spec.device == "cpu":
        return f"execution {spec.execution} of {spec.strategy} records CUDA graphs on a GPU; use eager or compiled"
    if spec.optimizer.name not in ("adam", "adamw", "sgd"):
        return (
            f"execution {spec.execution} goes with adam, adamw and sgd; {spec.optimizer.name} asks the host in every "
            f"step"
        )
    if spec.optimizer.scheduled:
        return (
            f"execution {spec.execution} of {spec.strategy} records the learning rate with its step, and a schedule "
            f"changes it; leave schedule and warmup_steps out, or use eager or compiled"
        )
    if spec.clip is not None:
        return f"execution {spec.execution} was not tried with clipped gradients; leave clip out, or use eager"
    return None


def check_sharding(spec: RunSpec, system: System) -> str | None:
    """Whether this PyTorch has `fully_shard` for the device: version 2.6 supports GPUs only."""
    if spec.device != "cpu" or not is_older(system, 2, 7):
        return None
    version = system.frameworks["torch"]
    return f"{spec.strategy} on CPU needs PyTorch 2.7 or newer and this is {version}; upgrade it, or use torch-zero"


def is_older(system: System, major: int, minor: int) -> bool:
    """Whether the system's PyTorch is known to be older than a version."""
    numbers = [int(word) for word in system.frameworks.get("torch", "").split(".")[:2] if word.isdigit()]
    return len(numbers) == 2 and numbers < [major, minor]


def is_out_of_memory(error: BaseException) -> bool:
    """CUDA has a type for it; the CPU allocator raises a plain `RuntimeError` that only its text tells apart."""
    import torch

    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return type(error) is RuntimeError and "DefaultCPUAllocator" in str(error)


def why_not_read(spec: RunSpec) -> str | None:
    """Why such a run cannot read data while it trains, in words, or None."""
    if "graph" not in spec.execution:
        return None
    return f"and execution {spec.execution} of {spec.strategy} replays steps over data on the GPU; use eager"


# Of strategies whose parameters stay in single precision, and which cannot skip a step as fp16 needs it.
WHOLE_PARAMETERS: tuple[Precision, ...] = ("fp32", "tf32", "bf16")
PRECISIONS: tuple[Precision, ...] = (*WHOLE_PARAMETERS, "fp16", "bf16-pure")
NEEDS = Needs(
    precisions=PRECISIONS,
    executions=("eager", "compiled"),
    reads=frozenset({"arrays", "memmap", "dataset", "stream"}),
    loader_processes=True,
    why_not_read=why_not_read,
    is_out_of_memory=is_out_of_memory,
)
# Where servers have the optimizer's state, no worker could save it.
SERVED_STEP_FIELDS = STEP_FIELDS - {"checkpoint_every"}
# Of strategies that give each worker a part of the model.
NEEDS_OF_PARTS = replace(
    NEEDS, executions=("eager",), heeds=frozenset({"checkpoint_every"}), reads=NEEDS.reads - {"stream"}
)
