"""A port for each process of a run, for frameworks whose processes all listen: chosen by the system, held until used.

Each process binds a port, publishes its number and keeps it bound until the framework's server has bound it too; both
set SO_REUSEPORT, so no other program can get in between.
"""

import contextlib
import socket
from collections.abc import Iterator

from paceline.contract.context import Context

PORT = "port"


@contextlib.contextmanager
def held_ports(context: Context) -> Iterator[list[int]]:
    """The ports of all processes in rank order; that of this process stays bound while the context lasts."""
    rendezvous, process = context.rendezvous, context.process
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind((rendezvous.host, 0))
        rendezvous.publish(PORT, process.rank, str(bound.getsockname()[1]))
        patience = context.spec.collective_timeout_seconds
        yield [int(port) for port in rendezvous.await_values(PORT, range(process.world), patience)]
