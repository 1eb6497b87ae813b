"""A connection between the chief of a cluster and each process that serves it.

TensorFlow's servers never return by themselves. Each serving process connects to the chief at the run's meeting point
and waits. When all is done the chief sends what the record should say of the process, and ends, which closes the
connection.
"""

import json
import os
import socket
from typing import Any

from paceline.contract.context import Context

CHUNK_BYTES = 1 << 16


def accept_members(context: Context) -> dict[int, socket.socket]:
    """The chief's side: a connection to each other process, by rank."""
    assert context.rendezvous.listen_fd is not None
    connections: dict[int, socket.socket] = {}
    with socket.socket(fileno=os.dup(context.rendezvous.listen_fd)) as listener:
        listener.settimeout(context.spec.collective_timeout_seconds)
        while len(connections) < context.process.world - 1:
            connection, _ = listener.accept()
            connection.settimeout(context.spec.collective_timeout_seconds)
            connections[int(connection.recv(CHUNK_BYTES))] = connection
    return connections


def connect_to_chief(context: Context) -> socket.socket:
    """The other side: sends its rank."""
    connection = socket.create_connection(
        (context.rendezvous.host, context.rendezvous.port), context.spec.collective_timeout_seconds
    )
    connection.sendall(str(context.process.rank).encode())
    return connection


def send_details(connection: socket.socket, details: dict[str, Any]) -> None:
    """Sends a process what the record should say of it."""
    connection.sendall(json.dumps(details).encode() + b"\n")


def receive_details(connection: socket.socket) -> dict[str, Any]:
    """Waits until the chief has ended and returns what it sent before."""
    connection.settimeout(None)
    message = b""
    while chunk := connection.recv(CHUNK_BYTES):
        message += chunk
    if not message.endswith(b"\n"):
        raise ConnectionError("the chief ended before it was done")
    return dict(json.loads(message))
