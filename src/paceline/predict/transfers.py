"""Seconds of a transfer: measured curves where there are some, else alpha-beta formulas of the usual algorithms.

Ring and tree: Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH", 2005;
Patarasuk and Yuan, 2009. Hierarchical: reduce within nodes, then between them, as NCCL and Horovod do.
"""

from dataclasses import dataclass, field
from functools import cached_property
from math import ceil, log2

from paceline.costs.messages import MessageKind
from paceline.predict.links import LinkCosts
from paceline.systems.hardware import Collective, Hardware, Link

# Passes of the whole payload over a ring: an all-reduce is a reduce-scatter and then an all-gather.
RING_PASSES = {"all-reduce": 2, "reduce-scatter": 1, "all-gather": 1, "all-to-all": 1}
# Within one process nothing is sent: operands are read and results written in memory that all workers share.
IN_PROCESS = "memory"


@dataclass(frozen=True)
class Wire:
    """A link in two numbers."""

    latency: float
    bandwidth: float

    @classmethod
    def over(cls, link: Link) -> "Wire":
        """The wire of a described link."""
        return cls(link.latency_seconds.value, link.bytes_per_second.value)

    def send(self, payload_bytes: float) -> float:
        """One message from one rank to another."""
        return self.latency + payload_bytes / self.bandwidth


def ring_seconds(kind: str, payload_bytes: float, ranks: int, wire: Wire) -> float:
    """A ring collective: every rank forwards one part at a time, n - 1 times in each pass."""
    return RING_PASSES[kind] * (ranks - 1) * wire.send(payload_bytes / ranks)


def tree_seconds(payload_bytes: float, ranks: int, wire: Wire) -> float:
    """An all-reduce over two binary trees that each carry half of the payload, in small chunks."""
    return 2 * ceil(log2(ranks)) * wire.latency + 2 * payload_bytes / wire.bandwidth


def broadcast_seconds(payload_bytes: float, ranks: int, wire: Wire) -> float:
    """A broadcast by binomial tree: each round doubles the number of ranks that have the data."""
    return ceil(log2(ranks)) * wire.send(payload_bytes)


@dataclass(frozen=True)
class Costs:
    """Transfers of one system; `algorithm` is auto, ring or tree."""

    hardware: Hardware
    transport: str
    algorithm: str = "auto"
    # Between any two ranks, where there is another link than the system's own.
    link: LinkCosts | None = None
    # Transfers that were worked out before: layouts of one model have many alike.
    _known: dict[tuple[MessageKind, float, int, int], float] = field(default_factory=dict, repr=False)

    @cached_property
    def _measured(self) -> dict[tuple[str, int], Collective]:
        known = [each for each in self.hardware.calibrated.collectives if each.transport == self.transport]
        return {(collective.kind, collective.ranks): collective for collective in known}

    @cached_property
    def inner(self) -> Wire:
        """The link between devices of a node."""
        return Wire.over(self.hardware.inner)

    @cached_property
    def outer(self) -> Wire:
        """The link between nodes, as the share of each device of a node."""
        return Wire.over(self.hardware.outer)

    def seconds(
        self, kind: MessageKind, payload_bytes: float, ranks: int, apart: int = 1, slowdown: float = 1.0
    ) -> float:
        """Seconds of one transfer between `ranks` ranks whose rank numbers are `apart` from each other.

        `slowdown` is how many times as long it takes because devices have other work; a wire has none.
        """
        on_devices = self.device_seconds(kind, payload_bytes, ranks, apart) * slowdown
        if self.link is None or not on_devices:
            return on_devices
        wire = self.link.wire_seconds(kind, payload_bytes, ranks)
        return max(on_devices, wire) + self.link.delay_seconds(kind, payload_bytes, ranks)

    def device_seconds(self, kind: MessageKind, payload_bytes: float, ranks: int, apart: int = 1) -> float:
        """Seconds of one transfer over the system's own links; over another link, those that keep cores busy."""
        key = kind, payload_bytes, ranks, apart
        if key not in self._known:
            self._known[key] = self._seconds(kind, payload_bytes, ranks, apart)
        return self._known[key]

    def _seconds(self, kind: MessageKind, payload_bytes: float, ranks: int, apart: int) -> float:
        if ranks < 2 or payload_bytes <= 0:
            return 0.0
        measured = self._from_measurements(kind, payload_bytes, ranks)
        if measured is not None:
            return measured
        if self.transport == IN_PROCESS:
            return self._in_process(kind, payload_bytes, ranks)
        near = max(1, min(ranks, self.hardware.node_devices // apart))
        return self._by_formula(kind, payload_bytes, ranks, near)

    def _by_formula(self, kind: MessageKind, payload_bytes: float, ranks: int, near: int) -> float:
        """Seconds by formula, the cheapest algorithm; `near` of the ranks are in one node."""
        if kind == "send":
            return (self.inner if near == ranks else self.outer).send(payload_bytes)
        if kind == "broadcast":
            return self._broadcast(payload_bytes, ranks, near)
        if kind == "all-to-all" and near < ranks:
            # Nothing is summed on the way: what is for another node goes there piece by piece.
            piece = payload_bytes / ranks
            return (near - 1) * self.inner.send(piece) + (ranks - near) * self.outer.send(piece)
        if near in (1, ranks):
            return self._flat(kind, payload_bytes, ranks, self.inner if near == ranks else self.outer)
        return self._hierarchical(kind, payload_bytes, ranks, near)

    def residual(self, kind: str, ranks: int) -> float | None:
        """The relative residual of the measured curve, or None without one."""
        measured = self._nearest(kind, ranks)
        return measured.curve.residual if measured else None

    def _flat(self, kind: str, payload_bytes: float, ranks: int, wire: Wire) -> float:
        ring = ring_seconds(kind, payload_bytes, ranks, wire)
        if kind != "all-reduce" or self.algorithm == "ring":
            return ring
        tree = tree_seconds(payload_bytes, ranks, wire)
        return tree if self.algorithm == "tree" else min(ring, tree)

    def _hierarchical(self, kind: str, payload_bytes: float, ranks: int, near: int) -> float:
        """Seconds of a hierarchical collective: devices exchange their shares with peers in other nodes."""
        nodes = ceil(ranks / near)
        between = self._flat(kind, payload_bytes / near, nodes, self.outer)
        return ring_seconds(kind, payload_bytes, near, self.inner) + between

    def _broadcast(self, payload_bytes: float, ranks: int, near: int) -> float:
        within = broadcast_seconds(payload_bytes, near, self.inner) if near > 1 else 0.0
        nodes = ceil(ranks / near)
        return within + (broadcast_seconds(payload_bytes, nodes, self.outer) if nodes > 1 else 0.0)

    def _in_process(self, kind: str, payload_bytes: float, ranks: int) -> float:
        """Seconds of a collective through shared memory: parts are read once, the result written per worker."""
        touched = payload_bytes * (2 if kind == "send" else ranks + 1)
        return self.inner.latency + touched / self.hardware.device.memory_bytes_per_second.value

    def _from_measurements(self, kind: str, payload_bytes: float, ranks: int) -> float | None:
        measured = self._nearest(kind, ranks)
        if measured is None:
            return None
        seconds = measured.curve.at(payload_bytes)
        if measured.ranks == ranks or kind == "send":
            return seconds
        if kind == "broadcast":
            return seconds * ceil(log2(ranks)) / max(1, ceil(log2(measured.ranks)))
        # A ring of another length: more steps of smaller parts, on cores that more ranks share.
        crowd = max(1.0, ranks / self.hardware.node_devices) if self.hardware.kind == "cpu" else 1.0
        line = measured.curve
        steps = (ranks - 1) / (measured.ranks - 1)
        share = steps * measured.ranks / ranks
        moved = max(0.0, seconds - line.fixed)
        return (line.fixed * steps + moved * share) * crowd

    def _nearest(self, kind: str, ranks: int) -> Collective | None:
        if not self._measured:
            return None
        same = [collective for (what, _), collective in self._measured.items() if what == kind]
        if not same and kind in ("reduce-scatter", "all-to-all"):
            same = [collective for (what, _), collective in self._measured.items() if what == "all-gather"]
        return min(same, key=lambda collective: abs(collective.ranks - ranks), default=None)
