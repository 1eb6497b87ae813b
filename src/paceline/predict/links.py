"""What a network link adds to a transfer: its bytes on the wire, and the delays until the first of them arrive.

Over loopback a transfer takes what cores take to move its bytes. Over a link they do so while earlier bytes are on
the wire, so that the slower of both decides.
"""

from dataclasses import dataclass
from math import ceil, log2

from paceline.link import NetworkLink

# A full frame carries 1,448 bytes of a message in 1,514 (Ethernet, IP, and TCP with time stamps).
FRAME_OVERHEAD = 1514 / 1448
# gloo's all-gather sends each part whole, and the two directions of a connection get in each other's way: 1.27 to 1.56
# times as long as one direction takes, by itself between two namespaces at 0.1 to 1 Gbit/s. Its ring all-reduce, in
# pieces, reaches the link's rate both ways.
GATHER_SLOWDOWN = 1.35
# One-way delays of a message: gloo announces what is longer than a few kilobytes and waits until it is wanted. In
# collectives ranks are not in step, which takes half a delay more; measured between two namespaces at 5 to 40 ms.
LONG_MESSAGE_BYTES = 8e3
DELAYS_OF_A_WORD, DELAYS_OF_A_MESSAGE, DELAYS_OF_A_HOP = 1.0, 2.0, 2.5
# The ring has two pieces under way, of a mebibyte at most; a further pair waits in part for the one before.
PIECE_BYTES, DELAYS_OF_A_FURTHER_PAIR = 1 << 20, 1.25


@dataclass(frozen=True)
class LinkCosts:
    """Seconds of transfers between processes that are each behind the link."""

    link: NetworkLink

    def wire_seconds(self, kind: str, payload_bytes: float, ranks: int) -> float:
        """Seconds in which the busiest direction of a rank's link carries bytes."""
        moved = payload_bytes * FRAME_OVERHEAD / self.link.bytes_per_second
        ring = (ranks - 1) / ranks
        if kind == "all-reduce":
            return 2 * ring * moved
        if kind == "all-gather":
            return ring * moved * GATHER_SLOWDOWN
        if kind in ("reduce-scatter", "all-to-all"):
            return ring * moved
        return ceil(log2(ranks)) * moved if kind == "broadcast" else moved

    def delay_seconds(self, kind: str, payload_bytes: float, ranks: int) -> float:
        """Seconds of all delays that follow one another in a transfer."""
        if not self.link.delay_seconds:
            return 0.0
        hops = {"all-reduce": 2 * (ranks - 1), "broadcast": ceil(log2(ranks)), "send": 1}.get(kind, ranks - 1)
        if payload_bytes <= LONG_MESSAGE_BYTES:
            return hops * DELAYS_OF_A_WORD * self.link.delay_seconds
        if kind == "send":
            return DELAYS_OF_A_MESSAGE * self.link.delay_seconds
        pairs = ceil(payload_bytes / ranks / PIECE_BYTES / 2) if kind == "all-reduce" else 1
        return hops * (DELAYS_OF_A_HOP + (pairs - 1) * DELAYS_OF_A_FURTHER_PAIR) * self.link.delay_seconds
