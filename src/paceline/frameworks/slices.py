"""The link between slices of one GPU, chosen in the process that has the framework's NCCL loaded."""

import os

from paceline.contract.context import Context
from paceline.systems.nccl import (
    BOUNDS,
    NCCL_VERSION,
    SLICE_TRANSPORT,
    SLICE_TRANSPORT_REASON,
    loaded_nccl,
    slice_link,
    slice_multiprocessors,
    version_text,
)


def open_slice_link(context: Context) -> None:
    """Sets the variables that NCCL will read, and notes which NCCL it is and how it was told to talk.

    To be called after the framework's import and before ranks meet; does nothing on other devices.
    """
    spec, process = context.spec, context.process
    if spec.device != "cuda-slice":
        return
    nccl = loaded_nccl()
    link = slice_link(nccl, spec.transport)
    for name, value in link.environment(process.rank, slice_multiprocessors(), process.place.interface).items():
        if name not in BOUNDS or name not in os.environ:
            os.environ[name] = value
    if nccl is not None:
        context.notes[NCCL_VERSION] = version_text(nccl)
    if process.world > 1:
        context.notes.update({SLICE_TRANSPORT: link.transport, SLICE_TRANSPORT_REASON: link.reason})
