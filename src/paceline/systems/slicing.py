"""Whether a GPU of this machine can be cut into slices, found without touching it."""

import shutil
from collections.abc import Sequence

CONTROL = "nvidia-cuda-mps-control"


def missing_for_slices(gpus: Sequence[object]) -> str | None:
    """What device cuda-slice lacks here, in words; None if nothing."""
    if not gpus:
        return "this machine has no CUDA device"
    if shutil.which(CONTROL) is None:
        return f"{CONTROL} is not on the path; it comes with NVIDIA's driver (package nvidia-compute-utils or the like)"
    return None
