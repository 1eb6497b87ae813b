"""The devices of a JAX run as a mesh, and the processes that drive them: one, or one for each worker.

Several meet through `jax.distributed`, at a port that the first one holds; on CPU their collectives go over gloo.
"""

from functools import partial
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from paceline.contract.context import Context
from paceline.errors import SpecError
from paceline.frameworks.jax.declared import in_processes
from paceline.frameworks.meeting import held_addresses
from paceline.frameworks.slices import open_slice_link

WORKERS = "workers"


def join(context: Context) -> None:
    """All processes of the run, where there are several; to be called before JAX is used."""
    if not in_processes(context.spec) or context.process.world == 1:
        return
    spec, process = context.spec, context.process
    patience = max(1, int(spec.collective_timeout_seconds))
    if spec.device == "cpu":
        _meet_at(process.place.address)
    open_slice_link(context)
    with held_addresses(context) as addresses:
        jax.distributed.initialize(
            coordinator_address=addresses[0],
            coordinator_bind_address=addresses[0],
            num_processes=process.world,
            process_id=process.rank,
            local_device_ids={"cpu": None, "cuda": [process.device], "cuda-slice": [0]}[spec.device],
            cluster_detection_method="deactivate",
            initialization_timeout=patience,
            shutdown_timeout_seconds=patience,
        )


def leave(context: Context) -> None:
    """Waits for the others: one that sees the first process gone before its own end would abort."""
    if jax.process_count() > 1:
        jax.distributed.shutdown()


def align(context: Context) -> None:
    """Returns when every process is here."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices("paceline")


def mesh_of(context: Context, **sizes: int) -> Mesh:
    """The run's devices, in a row or in a grid with named sides."""
    devices, shape = jax.devices(), tuple(sizes.values()) or (context.spec.workers,)
    wanted = int(np.prod(shape))
    if len(devices) < wanted:
        raise SpecError(f"{wanted} workers need as many devices and JAX found {len(devices)}; use fewer workers")
    return Mesh(np.array(devices[:wanted]).reshape(shape), tuple(sizes) or (WORKERS,))


def _meet_at(address: str) -> None:
    """Has gloo listen at that address. JAX lets it find one from the host's name, which need not lead anywhere."""
    from jax._src import xla_bridge

    # The module has been renamed; where neither name is there, the host's name has to do.
    library: Any = getattr(xla_bridge, "_jax", None) or getattr(xla_bridge.xla_client, "_xla", None)
    plain = getattr(library, "make_gloo_tcp_collectives", None)
    if plain is None:
        return
    library.make_gloo_tcp_collectives = partial(plain, hostname=address)
