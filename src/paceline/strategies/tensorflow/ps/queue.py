"""The line between the chief of a cluster and the processes that serve it: who is there, what they did, and the end.

TensorFlow's servers never return by themselves. Each serving process calls the chief at the run's meeting point and
listens: first comes, when all is done, what the record should say of it, and then the line goes dead with the chief.
"""

import json
import os
import socket
from typing import Any

from paceline.contract.context import Context

CHUNK_BYTES = 1 << 16


def take_calls(context: Context) -> dict[int, socket.socket]:
    """The chief's side: a line to each other process, by rank."""
    assert context.rendezvous.listen_fd is not None
    lines: dict[int, socket.socket] = {}
    with socket.socket(fileno=os.dup(context.rendezvous.listen_fd)) as listener:
        listener.settimeout(context.spec.collective_timeout_seconds)
        while len(lines) < context.process.world - 1:
            line, _ = listener.accept()
            line.settimeout(context.spec.collective_timeout_seconds)
            lines[int(line.recv(CHUNK_BYTES))] = line
    return lines


def call_chief(context: Context) -> socket.socket:
    """The other side: says who is calling."""
    line = socket.create_connection(
        (context.rendezvous.host, context.rendezvous.port), context.spec.collective_timeout_seconds
    )
    line.sendall(str(context.process.rank).encode())
    return line


def tell(line: socket.socket, details: dict[str, Any]) -> None:
    """The chief's last words to a process."""
    line.sendall(json.dumps(details).encode() + b"\n")


def listen(line: socket.socket) -> dict[str, Any]:
    """Until the chief has ended: what it said before."""
    line.settimeout(None)
    said = b""
    while heard := line.recv(CHUNK_BYTES):
        said += heard
    if not said.endswith(b"\n"):
        raise ConnectionError("the chief ended before it was done")
    return dict(json.loads(said))
