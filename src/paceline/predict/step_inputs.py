"""What a step is simulated with, and what comes of it: the seconds of its parts."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.costs.footprint import FLOAT_BYTES, ModelFacts, RankFootprint
from paceline.costs.messages import Message
from paceline.predict.compute import Passes
from paceline.predict.rank_passes import RankClock
from paceline.predict.transfers import Costs
from paceline.systems.hardware import Hardware, StrategyOverhead

# A socket takes about so much at once (Linux: tcp_wmem starts at 16 kB and grows as it is used); the rest of a message
# waits for the threads of both ends, which computation keeps from their cores, more than once.
LONG_BYTES = 100e3
# Where shards wait in the host's memory: copies in a pass, and how often an update touches parameters and gradients.
COPIES_OF_SHARDS = UPDATE_PASSES = 3


@dataclass(frozen=True)
class Parts:
    """Seconds of one step: they add up to it. `transfers` is all communication, hidden or not."""

    compute: float
    exposed: float
    bubble: float
    waiting: float
    transfers: float
    staleness: float = 0.0
    # Of what is exposed: copies to and from the host's memory, and the update there.
    offloaded: float = 0.0
    # Of all processes together, where cores also move the bytes.
    cpu_seconds: float = 0.0

    @property
    def step(self) -> float:
        """Seconds of the whole step."""
        return self.compute + self.exposed + self.bubble + self.waiting


@dataclass(frozen=True)
class StepInputs:
    """What a step is simulated with: the work of one worker, the costs of transfers, and who shares what."""

    hardware: Hardware
    costs: Costs
    model: ModelFacts
    passes: Passes
    # By which factor computation takes longer because other workers compute too.
    crowding: float
    synchronous: bool
    workers: int
    # Operations that the passes stand for: a worker that holds a part of each layer has fewer.
    flops: float
    state_bytes_per_parameter: float = 0.0
    # Backward passes before the one that gradients are sent with; each has a forward pass of its own.
    earlier_passes: int = 0
    # What the strategy's software takes of a rank, and whether a rank holds a part of each layer.
    overhead: StrategyOverhead | None = None
    splits_layers: bool = False
    # Whether shards wait in the host's memory, and the host updates them.
    offloads: bool = False
    # Times a rank's own part of the model, where its operations are known.
    clock: RankClock | None = None
    # Pieces of the model's gradients by their sizes, worked out once.
    filled: dict[tuple[float, float], list[tuple[int, float]]] = field(default_factory=dict)

    def software_seconds(self, group: RankFootprint, parameter_bytes: float) -> float:
        """Seconds in which a rank handles its messages and these parameters, beside the sending itself."""
        if self.overhead is None or self.workers < 2:
            return 0.0
        # A rank with parts of layers goes through the software for every operation on them, not for every message.
        handled = self.model.tensors if self.splits_layers else _message_count(group)
        per_byte = self.overhead.seconds_per_parameter_byte
        return per_byte * parameter_bytes + self.overhead.seconds_per_message * handled

    def peer_wakeup_seconds(self, group: RankFootprint) -> float:
        """Seconds in which a rank waits until the processes at the other ends of its messages wake up."""
        if self.overhead is None or self.workers < 2:
            return 0.0
        long = sum(message.count for message in group.messages if message.payload_bytes > LONG_BYTES)
        return self.overhead.waiting_per_message * _message_count(group) + self.overhead.waiting_per_long_message * long

    @property
    def places(self) -> dict[str, int]:
        """The index of each layer in the model, by its name."""
        model = self.model
        return model.derive(("places of layers",), lambda: {layer.name: at for at, layer in enumerate(model.layers)})

    def passes_of_rank(self, group: RankFootprint) -> Passes | None:
        """Seconds of one pass over the rank's own part of the model; None where only its share is known."""
        if self.clock is None or group.work is None:
            return None
        return self.clock.passes(group.work).crowded(self.crowding)

    def with_host(self, passes: Passes, exchanges: tuple[float, float]) -> tuple[float, float]:
        """Seconds of a rank's forward and backward pass with these exchanges, no less than its host takes to ask."""
        share = self.hardware.software.host_wait_share if self.hardware.software else 0.0
        return (
            _with_host(passes.forward, passes.host_forward, exchanges[0], share),
            _with_host(passes.backward, passes.host_backward, exchanges[1], share),
        )

    @property
    def overhead_seconds(self) -> float:
        """Seconds of a step that belong to no pass, transfer or update."""
        fitted = self.hardware.software.step_seconds if self.hardware.software else 0.0
        return self.passes.overhead * self.crowding + fitted

    @property
    def hidden_share(self) -> float:
        """The share of gradient transfers that may overlap with the backward pass."""
        return self.hardware.software.hidden_share if self.hardware.software else 1.0

    def share(self, group: RankFootprint) -> float:
        """The share of the whole model's operations that the rank computes for its samples."""
        return group.flops / (1 + self.earlier_passes) / self.flops if self.flops else 1.0

    def scale(self, group: RankFootprint) -> float:
        """A rank's pass time over that of the whole model: by operations, but never below the kernel launch time."""
        least = self.passes.least / self.passes.total if self.passes.total else 0.0
        return self.crowding * max(self.share(group), least)

    def update_seconds(self, group: RankFootprint) -> float:
        """Seconds to update the parameters that a rank has optimizer state for, or all that it holds.

        Where the host does it, they are among those of `offload_seconds`.
        """
        if self.offloads:
            return 0.0
        held = group.parameter_bytes / FLOAT_BYTES * self.model.trained_share
        if self.state_bytes_per_parameter:
            held = min(held, group.optimizer_bytes / self.state_bytes_per_parameter)
        return held * self.passes.update_per_parameter * self.crowding

    def offload_seconds(self, group: RankFootprint, computing: float) -> float:
        """Exposed seconds of shards in the host's memory: copies that nothing hides, and the update by the host.

        In each pass shards go to the device before both of its halves, and those of gradients come back. The update
        reads and writes parameters and optimizer state, and reads gradients.
        """
        if not self.offloads:
            return 0.0
        device, shard = self.hardware.device, group.parameter_bytes
        copied = COPIES_OF_SHARDS * shard * (1 + self.earlier_passes) / device.host_link_bytes_per_second.value
        updated = UPDATE_PASSES * shard + 2 * group.optimizer_bytes
        return max(0.0, copied - computing) + updated / device.host_update_bytes_per_second.value

    def cost(self, message: Message) -> float:
        """Seconds of one such message."""
        return self.costs.seconds(message.kind, message.payload_bytes, message.ranks, message.apart)

    def hidden_seconds(self, message: Message, payload_bytes: float) -> float:
        """Seconds of so many bytes of such a message while the rank computes, which slows transfers down."""
        slowdown = self.hardware.overlap_slowdown.value
        return self.costs.seconds(message.kind, payload_bytes, message.ranks, message.apart, slowdown)

    def seconds(self, message: Message) -> float:
        """Seconds of all such messages in a step."""
        return self.cost(message) * message.count

    def device_seconds(self, message: Message) -> float:
        """Seconds of all such messages in a step in which devices are busy with them."""
        alone = self.costs.device_seconds(message.kind, message.payload_bytes, message.ranks, message.apart)
        return alone * message.count

    def busy_seconds(self, transfers: float, group: RankFootprint) -> float:
        """Seconds of these transfers of a rank in which its device is busy: all, but for bytes on another link."""
        if self.costs.link is None:
            return transfers
        return min(transfers, sum(map(self.device_seconds, group.messages)))

    def delay_seconds(self, message: Message, payload_bytes: float | None = None) -> float:
        """Seconds in which one such message is on its way and keeps neither a link nor a device busy."""
        if self.costs.link is None:
            return 0.0
        size = message.payload_bytes if payload_bytes is None else payload_bytes
        return self.costs.link.delay_seconds(message.kind, size, message.ranks)

    def interference(self, hidden: Sequence[Message]) -> float:
        """Seconds of computation lost in each second in which these transfers are under way.

        While bytes are on a wire, nobody moves them.
        """
        usual = self.hardware.interference.value
        if self.costs.link is None or not usual:
            return usual
        busy, under_way = (sum(map(seconds, hidden)) for seconds in (self.device_seconds, self.seconds))
        share = usual / (1 + usual) * (busy / under_way if under_way else 1.0)
        return share / (1 - share)


def _with_host(device: Sequence[float], host: Sequence[float], exchanges: float, wait_share: float) -> float:
    """Seconds of a pass: the longer of device and host, by the whole pass or layer by layer."""
    asking = sum(host)
    ahead = max(sum(device) + exchanges, asking)
    if not wait_share or not asking:
        return ahead
    # Exchanges are of layers as operations are.
    apart = sum(
        max(computed + exchanges * launched / asking, launched) for computed, launched in zip(device, host, strict=True)
    )
    return ahead + wait_share * (apart - ahead)


def _message_count(group: RankFootprint) -> float:
    return sum(message.count for message in group.messages)
