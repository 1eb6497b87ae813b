"""A port for each process of a run, for frameworks whose processes all listen: chosen by the system, held until used.

Each process binds a port at its own address, publishes both and keeps the port bound until the framework's server has
bound it too; both set SO_REUSEPORT, so no other program can get in between.
"""

import contextlib
import socket
from collections.abc import Iterator

from paceline.contract.context import Context

ADDRESS = "address"


@contextlib.contextmanager
def held_addresses(context: Context) -> Iterator[list[str]]:
    """The `host:port` of all processes in rank order; that of this process stays bound while the context lasts.

    A process that comes in the place of another takes over its port, where the others look for it.
    """
    rendezvous, process = context.rendezvous, context.process
    earlier = rendezvous.exchange.read(ADDRESS, process.rank) if rendezvous.exchange is not None else None
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind((process.place.address, int(earlier.rpartition(":")[2]) if earlier else 0))
        host, port = bound.getsockname()
        rendezvous.publish(ADDRESS, process.rank, f"{host}:{port}")
        yield rendezvous.await_values(ADDRESS, range(process.world), context.spec.collective_timeout_seconds)
