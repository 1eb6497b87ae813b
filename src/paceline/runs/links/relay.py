"""A switch in a process: carries frames between TAP devices at the rate and delay of a link.

For kernels whose traffic control knows no delay. Frames travel in the large pieces that the kernel would hand to a
network card (IFF_VNET_HDR), so that a gigabit is a few thousand of them a second.
"""

import contextlib
import fcntl
import os
import select
import struct
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil
from time import monotonic

from paceline.link import NetworkLink
from paceline.runs.links.shaping import INTERFACE, buffer_bytes

TUN_DEVICE = "/dev/net/tun"
# linux/if_tun.h
TUNSETIFF, TUNSETOFFLOAD = 0x400454CA, 0x400454D0
IFF_TAP, IFF_NO_PI, IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
TUN_F_CSUM, TUN_F_TSO4, TUN_F_TSO6 = 0x01, 0x02, 0x04
# struct virtio_net_hdr: flags, kind of segmentation, length of headers, bytes of a segment, two offsets.
HEADER = struct.Struct("<BBHHHH")
MOST_FRAME_BYTES = HEADER.size + 65_536 + 64
DESTINATION = slice(HEADER.size, HEADER.size + 6)
# The lowest bit of an address's first byte marks those that are for everyone.
FOR_ALL = 1
# A port is read ahead of its turn by so much of its time: what waits in the device tells the sender to wait.
READ_AHEAD_SECONDS = 0.5e-3


def open_tap() -> int:
    """A TAP device in the network namespace of the calling process; what is sent there is read here."""
    fd = os.open(TUN_DEVICE, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", INTERFACE.encode(), IFF_TAP | IFF_NO_PI | IFF_VNET_HDR))
    fcntl.ioctl(fd, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6)
    return fd


def wire_bytes(frame: bytes) -> int:
    """Bytes that the frame takes on a wire, where each segment of a large piece has headers of its own."""
    _flags, kind, header_bytes, segment_bytes, _start, _offset = HEADER.unpack_from(frame)
    size = len(frame) - HEADER.size
    if not kind or not segment_bytes:
        return size
    segments: int = ceil((size - header_bytes) / segment_bytes)
    return size + (segments - 1) * int(header_bytes)


@dataclass
class Switch:
    """When frames arrive that were sent between ports; the clock is the caller's.

    A port sends one frame at a time and receives one at a time, each at the link's rate, and a frame begins to arrive
    as it begins to leave. What a port could receive only after its buffer is full is dropped, as a switch does.
    """

    link: NetworkLink
    ports: int
    sent_until: list[float] = field(default_factory=list)
    received_until: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sent_until, self.received_until = [0.0] * self.ports, [0.0] * self.ports
        self._buffer_seconds = buffer_bytes(self.link) / self.link.bytes_per_second

    def ready_at(self, port: int) -> float:
        """From when on a port may send its next frame."""
        return self.sent_until[port] - READ_AHEAD_SECONDS

    def depart(self, port: int, size: int, now: float) -> float:
        """When the last byte of a frame has left its port."""
        self.sent_until[port] = max(self.sent_until[port], now) + size / self.link.bytes_per_second
        return self.sent_until[port]

    def arrive(self, port: int, size: int, departed: float) -> float | None:
        """When the last byte of a frame that left then has arrived; None for one that is dropped."""
        until = max(departed, self.received_until[port] + size / self.link.bytes_per_second)
        if until - departed > self._buffer_seconds:
            return None
        self.received_until[port] = until
        return until + self.link.delay_seconds


@dataclass
class Relay:
    """Moves frames between TAP devices, whose numbers are the ends of their addresses, until it is told to stop."""

    taps: Sequence[int]
    switch: Switch
    # For each port, frames on their way to it and when they arrive, in that order.
    under_way: list[deque[tuple[float, bytes]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.under_way = [deque() for _ in self.taps]

    def run(self, stop_fd: int, clock: Callable[[], float] = monotonic) -> None:
        """Carries frames until something can be read from `stop_fd`, or it is closed at the other end."""
        while True:
            now = clock()
            self.deliver(now)
            ready = [port for port in range(len(self.taps)) if self.switch.ready_at(port) <= now]
            readable, _, _ = select.select([stop_fd, *(self.taps[port] for port in ready)], [], [], self._wait(now))
            if stop_fd in readable:
                return
            for port in ready:
                if self.taps[port] in readable:
                    self.take(port, clock())

    def _wait(self, now: float) -> float | None:
        """Seconds until the next frame arrives or a port that was busy may send again; None if only frames count."""
        times = [frames[0][0] for frames in self.under_way if frames]
        times += [time for port in range(len(self.taps)) if (time := self.switch.ready_at(port)) > now]
        return max(0.0, min(times) - now) if times else None

    def take(self, port: int, now: float) -> None:
        """Reads one frame of a port and sends it on its way."""
        try:
            frame = os.read(self.taps[port], MOST_FRAME_BYTES)
        except BlockingIOError:
            return
        size, destination = wire_bytes(frame), frame[DESTINATION]
        departed = self.switch.depart(port, size, now)
        if destination[0] & FOR_ALL:
            receivers = [other for other in range(len(self.taps)) if other != port]
        else:
            number = int.from_bytes(destination[4:], "big")
            receivers = [number] if number < len(self.taps) else []
        for receiver in receivers:
            arrives = self.switch.arrive(receiver, size, departed)
            if arrives is not None:
                self.under_way[receiver].append((arrives, frame))

    def deliver(self, now: float) -> None:
        """Hands over the frames that have arrived."""
        for tap, frames in zip(self.taps, self.under_way, strict=True):
            while frames and frames[0][0] <= now:
                _, frame = frames.popleft()
                # An interface that is down, because its process has ended, takes nothing.
                with contextlib.suppress(OSError):
                    os.write(tap, frame)
