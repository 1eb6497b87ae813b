"""What can be said about PyTorch runs without importing PyTorch first."""

from paceline.spec import Execution, Precision

PRECISIONS: tuple[Precision, ...] = ("fp32", "tf32", "bf16")
# What PyTorch imports lazily in most runs; a template process imports it once for all of them.
PRELOAD = ("torch", "torch._dynamo", "torch.distributed", "torch.nn.parallel")
EXECUTIONS: tuple[Execution, ...] = ("eager", "compiled")


def is_out_of_memory(error: BaseException) -> bool:
    """CUDA has a type for it; the CPU allocator raises a plain `RuntimeError` that only its text tells apart."""
    import torch

    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return type(error) is RuntimeError and "DefaultCPUAllocator" in str(error)
