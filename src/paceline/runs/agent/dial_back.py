"""Connections from agents that an engine started without a channel of its own: each is let in by its secret alone.

The launcher makes a secret for each agent, good for one connection, and the engine hands it over in the environment.
Both sides send a random number first, and sign every frame with a key made of the secret and both numbers. Frames are
signed and not encrypted: whoever sees the network can read them, and cannot give orders.
"""

import contextlib
import hmac
import os
import secrets
import socket
import threading
import time
from dataclasses import dataclass, field

from paceline.runs.agent.channel import AGENT, LAUNCHER, MOST_FRAME_BYTES, Channel, ChannelClosedError, SilenceError
from paceline.runs.agent.messages import FROM_AGENT, Dialled

SECRET = "PACELINE_AGENT_SECRET"
SECRET_BYTES = NONCE_BYTES = 32
# Of a connection that has not shown its secret yet.
STRANGER_SECONDS, STRANGER_FRAME_BYTES = 5.0, 256
DIAL_SECONDS = 10.0


def session_key(secret: bytes, launcher_nonce: bytes, agent_nonce: bytes) -> bytes:
    """The key of one connection: what was recorded of an earlier one is worth nothing."""
    return hmac.digest(secret, b"paceline" + launcher_nonce + agent_nonce, "sha256")


def dial(where: str) -> Channel:
    """The agent's side: connects, and takes the secret out of its environment, so that no process inherits it."""
    number, secret = os.environ.pop(SECRET).split(":")
    host, _, port = where.rpartition(":")
    return connect(host, int(port), int(number), bytes.fromhex(secret))


def connect(host: str, port: int, number: int, secret: bytes) -> Channel:
    """Connects as the agent of that number; raises `OSError` where nobody lets it in."""
    connection = socket.create_connection((host, port), DIAL_SECONDS)
    try:
        launcher_nonce, agent_nonce = _receive(connection, NONCE_BYTES), secrets.token_bytes(NONCE_BYTES)
        connection.sendall(number.to_bytes(4, "big") + agent_nonce)
    except OSError:
        connection.close()
        raise
    channel = _channel(connection, AGENT, session_key(secret, launcher_nonce, agent_nonce))
    channel.send(Dialled(number=number))
    return channel


@dataclass
class Reception:
    """The launcher's side: a port at which each expected agent is let in once."""

    address: str
    agents: int
    # Chosen by the system unless the agents know it already.
    port: int = 0
    # Known to all agents already; else each gets one of its own.
    shared_secret: bytes | None = None
    _secrets: list[bytes] = field(default_factory=list)
    _arrived: dict[int, Channel] = field(default_factory=dict)
    _news: threading.Condition = field(default_factory=threading.Condition)

    def __post_init__(self) -> None:
        self._secrets = [self.shared_secret or secrets.token_bytes(SECRET_BYTES) for _ in range(self.agents)]
        self._listener = socket.create_server((self.address, self.port))
        threading.Thread(target=self._accept, daemon=True, name="reception").start()

    @property
    def where(self) -> str:
        """The `host:port` to dial."""
        host, port = self._listener.getsockname()[:2]
        return f"{host}:{port}"

    def environment(self, number: int) -> dict[str, str]:
        """What the engine hands to the agent of that number, and to nobody else."""
        return {SECRET: f"{number}:{self._secrets[number].hex()}"}

    def expect_again(self, number: int) -> None:
        """Lets an agent of that number in once more, with a new secret: the former one is gone."""
        with self._news:
            self._secrets[number] = secrets.token_bytes(SECRET_BYTES)
            self._arrived.pop(number, None)

    def await_agent(self, number: int, seconds: float) -> Channel:
        """The agent's channel, once it has dialled; raises `SilenceError` where it has not."""
        with self._news:
            if not self._news.wait_for(lambda: number in self._arrived, seconds):
                raise SilenceError
            return self._arrived[number]

    def close(self) -> None:
        """Lets nobody in any more."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._let_in, args=(connection,), daemon=True).start()

    def _let_in(self, connection: socket.socket) -> None:
        """Lets an agent in, or closes the connection without a word."""
        try:
            claimed, channel = self._open_channel(connection)
        except OSError:
            connection.close()
            return
        try:
            known = FROM_AGENT.validate_json(channel.receive(STRANGER_SECONDS)) == Dialled(number=claimed)
        except (ValueError, ChannelClosedError, SilenceError):
            known = False
        channel.most_frame_bytes = MOST_FRAME_BYTES
        with self._news:
            if not known or claimed in self._arrived:
                channel.close()
                return
            self._arrived[claimed] = channel
            self._news.notify_all()

    def _open_channel(self, connection: socket.socket) -> tuple[int, Channel]:
        """A channel with the key of the agent that the other side says it is."""
        connection.settimeout(STRANGER_SECONDS)
        launcher_nonce = secrets.token_bytes(NONCE_BYTES)
        connection.sendall(launcher_nonce)
        number = int.from_bytes(_receive(connection, 4), "big")
        agent_nonce = _receive(connection, NONCE_BYTES)
        # A stranger who names no agent is turned away in the same way as one without the secret.
        secret = self._secrets[number] if number < self.agents else secrets.token_bytes(SECRET_BYTES)
        channel = _channel(connection, LAUNCHER, session_key(secret, launcher_nonce, agent_nonce))
        channel.most_frame_bytes = STRANGER_FRAME_BYTES
        return number, channel


def _channel(connection: socket.socket, side: bytes, key: bytes) -> Channel:
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    fd = connection.detach()
    return Channel(fd, fd, side, key)


def _receive(connection: socket.socket, count: int) -> bytes:
    until, received = time.monotonic() + STRANGER_SECONDS, b""
    while len(received) < count:
        if time.monotonic() > until:
            raise OSError("a connection said too little for too long")
        chunk = connection.recv(count - len(received))
        if not chunk:
            raise OSError("a connection ended before it said who it is")
        received += chunk
    return received
