"""What can be said about PyTorch runs without importing PyTorch first."""

from dataclasses import replace

from paceline.contract.strategy import Needs
from paceline.spec import Execution, RunSpec
from paceline.systems import System

# What PyTorch imports lazily in most runs; a template process imports it once for all of them.
PRELOAD = ("torch", "torch._dynamo", "torch.distributed", "torch.nn.parallel")
# Of strategies whose whole step can be recorded as a CUDA graph.
GRAPH_EXECUTIONS: tuple[Execution, ...] = ("eager", "compiled", "graph", "compiled+graph")


def check_graph(spec: RunSpec, _system: System) -> str | None:
    """What a step that is recorded as a graph cannot have, in words, or None."""
    if "graph" not in spec.execution:
        return None
    if spec.device == "cpu":
        return f"execution {spec.execution} records CUDA graphs, which need a GPU; use eager or compiled"
    if spec.optimizer.name not in ("adam", "sgd"):
        return f"execution {spec.execution} goes with adam and sgd; {spec.optimizer.name} asks the host in every step"
    return None


def check_sharding(spec: RunSpec, system: System) -> str | None:
    """Whether `fully_shard` is there for the device: in PyTorch 2.6 it knows GPUs only."""
    version = system.frameworks.get("torch", "")
    numbers = [int(word) for word in version.split(".")[:2] if word.isdigit()]
    if spec.device != "cpu" or len(numbers) < 2 or numbers >= [2, 7]:
        return None
    return f"{spec.strategy} on CPU needs PyTorch 2.7 or newer and this is {version}; upgrade it, or use torch-zero"


def is_out_of_memory(error: BaseException) -> bool:
    """CUDA has a type for it; the CPU allocator raises a plain `RuntimeError` that only its text tells apart."""
    import torch

    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return type(error) is RuntimeError and "DefaultCPUAllocator" in str(error)


NEEDS = Needs(precisions=("fp32", "tf32", "bf16"), executions=("eager", "compiled"), is_out_of_memory=is_out_of_memory)
# Of strategies that give each worker a part of the model.
NEEDS_OF_PARTS = replace(NEEDS, precisions=("fp32", "tf32"), executions=("eager",))
