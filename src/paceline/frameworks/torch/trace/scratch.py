"""What kernels on a GPU take for a moment beside their results, which tensors without numbers do not show."""

from typing import Any

from torch import Tensor

from paceline.costs.operations import Operation
from paceline.systems.gpu_memory import GpuMemory

FLOAT_BYTES = 4
# Of ATen/native/cuda/Reduce.cuh: threads of a block, those of a warp, numbers that a thread adds up at least and at
# most, and outputs that it makes at a time.
BLOCK_THREADS, WARP, LEAST_VALUES, MOST_VALUES, VECTOR = 512, 32, 16, 256, 4
IMAGE_DIMENSIONS = 4


class Scratch:
    """The scratch memory of one kind of GPU."""

    def __init__(self, gpu: GpuMemory) -> None:
        self._gpu = gpu

    def taken_by(self, operation: Operation, func: Any, args: Any, outputs: list[Tensor]) -> float:
        """Bytes that a kernel takes while it runs."""
        name = func._schema.name
        if name == "aten::sum" and len(args) > 1 and args[1]:
            return self._sum(args[0], outputs[0])
        if name == "aten::convolution_backward" and args[-1][2]:
            gradient = args[0]
            channels = gradient.shape[1]
            return self.sum_of_rows(gradient.numel() // channels, channels)
        if operation.kind == "attention" and operation.backward:
            return self._attention(name, args[0])
        return 0.0

    def _sum(self, tensor: Tensor, result: Tensor) -> float:
        """Scratch bytes of a sum that keeps the fastest dimension, as a bias gradient does; others need hardly any."""
        columns = max(1, result.numel())
        if tensor.stride(-1) != 1 or columns == 1 or tensor.shape[-1] != result.shape[-1]:
            return 0.0
        return self.sum_of_rows(tensor.numel() // columns, columns)

    def sum_of_rows(self, rows: int, columns: int) -> float:
        """Partial sums of all blocks, each of which has room for a whole block's threads."""
        vector = next(size for size in (VECTOR, 2, 1) if columns % size == 0)
        threads = BLOCK_THREADS // vector
        across, down = (min(_power_below(size), threads) for size in (columns // vector, rows))
        width = min(across, WARP)
        height = min(down, threads // width)
        width = min(across, threads // height)
        if rows < min(height * LEAST_VALUES, MOST_VALUES):
            return 0.0
        values = -(-rows // height)
        blocks = -(-(columns // vector) // width)
        wanted = self._gpu.multiprocessors * (self._gpu.threads_per_multiprocessor // (width * height))
        if values < MOST_VALUES or blocks > wanted:
            return 0.0
        parts = max(min(-(-wanted // blocks), -(-values // LEAST_VALUES)), -(-values // MOST_VALUES))
        return FLOAT_BYTES * columns * parts * width * vector if parts > 1 else 0.0

    def _attention(self, name: str, gradient: Tensor) -> float:
        """Gradients of queries are added up in single precision, beside one number for each query."""
        numbers = int(gradient.numel())
        queries = numbers // int(gradient.shape[-1])
        if "efficient" in name:
            return float(queries * FLOAT_BYTES)
        return float((numbers + queries) * FLOAT_BYTES)


def _power_below(size: int) -> int:
    return 1 << max(0, size.bit_length() - 1)
