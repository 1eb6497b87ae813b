"""What PyTorch's libraries take of a GPU's memory beside tensors, and which of their kernels they choose there."""

from typing import Literal

from paceline.spec import Frozen

Attention = Literal["cudnn", "flash", "efficient", "math"]
MEBIBYTE = 2**20


class GpuMemory(Frozen):
    """The memory behaviour of one kind of GPU; the usual values are those of Hopper, as measured on an H200."""

    source: str = "an H200 with PyTorch 2.11"
    # One for each thread that multiplies matrices: of the forward pass, and of autograd. PyTorch asks cuBLAS for
    # 32 MiB from Hopper on and for 8 MiB and 128 KiB before (CUDABlas.cpp, CublasHandlePool.cpp).
    product_workspace_bytes: float = 32 * MEBIBYTE
    # Sums over many rows are shared among all of them and put together in scratch memory (Reduce.cuh).
    multiprocessors: int = 132
    threads_per_multiprocessor: int = 2048
    # Which kernel attention runs on in numbers of two and of four bytes, where it takes the arguments.
    half_attention: Attention = "cudnn"
    single_attention: Attention = "efficient"
    # Whether a layer of a GRU, or a plain recurrent one, is one call, as in cuDNN; cores make it position by position.
    fuses_recurrent: bool = True

    def cut_into(self, slices: int) -> "GpuMemory":
        """The behaviour of one of `slices` equal slices."""
        return self.model_copy(update={"multiprocessors": max(1, self.multiprocessors // slices)})
