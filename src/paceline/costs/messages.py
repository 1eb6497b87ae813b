"""What the ranks of a run send each other in a step, and how much of it each of them sends and receives."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from paceline.spec import RunSpec

MessageKind = Literal["all-reduce", "reduce-scatter", "all-gather", "all-to-all", "broadcast", "send"]
# The part of a step that a message belongs to; an update comes after the backward pass.
Phase = Literal["forward", "backward", "update"]
# What is in a message: a part of the model, or what passes through it.
Content = Literal["gradients", "parameters", "activations"]


@dataclass(frozen=True)
class Message:
    """One kind of transfer that a rank takes part in, `count` times in a step."""

    name: str
    kind: MessageKind
    payload_bytes: float
    sent_bytes: float
    received_bytes: float
    count: float = 1
    # Passes of the step that have it, each as often.
    passes: int = 1
    # Ranks that take part, and how far apart their numbers are: neighbours unless it says otherwise.
    ranks: int = 2
    apart: int = 1
    phase: Phase = "update"
    # Whether the rank goes on computing while it is under way.
    hidden: bool = False
    # The layer whose passes need it or make it; none where it is about the model as a whole.
    layer: str | None = None
    # Neighbouring layers from that one on that have as many each; `count` is of all of them.
    layers: int = 1
    # Where it is cut into pieces that leave as the backward pass fills them: most bytes of a piece, and of the first.
    piece_bytes: float | None = None
    first_piece_bytes: float | None = None
    # Whether it carries no part of the model: a request, an answer, a share of work.
    control: bool = False
    # What is in it, where its kind and its part of the step do not tell.
    content: Content | None = None

    @property
    def carries(self) -> Content:
        """What the message carries: activations (or their gradients) if a pass waits for it or one rank receives it.

        Transfers that hide behind computation, and those of the update, are about the model itself.
        """
        if self.content is not None:
            return self.content
        if self.kind == "send" or not (self.hidden or self.phase == "update"):
            return "activations"
        return "parameters" if self.kind in ("all-gather", "broadcast") else "gradients"


def all_reduce(name: str, payload_bytes: float, ranks: int, **fields: Any) -> tuple[Message, ...]:
    """On a ring each rank sends 2 (n - 1) / n of the payload (Patarasuk and Yuan, 2009)."""
    moved = 2 * (ranks - 1) / ranks * payload_bytes
    return _unless_alone(Message(name, "all-reduce", payload_bytes, moved, moved, ranks=ranks, **fields), ranks)


def all_gather(name: str, payload_bytes: float, ranks: int) -> tuple[Message, ...]:
    """An all-gather: each rank forwards every part of the result but one."""
    moved = (ranks - 1) / ranks * payload_bytes
    return _unless_alone(Message(name, "all-gather", payload_bytes, moved, moved, ranks=ranks), ranks)


def reduce_scatter(name: str, payload_bytes: float, ranks: int) -> tuple[Message, ...]:
    """A reduce-scatter, which is half of a ring all-reduce."""
    moved = (ranks - 1) / ranks * payload_bytes
    return _unless_alone(Message(name, "reduce-scatter", payload_bytes, moved, moved, ranks=ranks), ranks)


def all_to_all(name: str, payload_bytes: float, ranks: int) -> tuple[Message, ...]:
    """Each rank has a part of the payload for every other, and gets as much."""
    moved = (ranks - 1) / ranks * payload_bytes
    return _unless_alone(Message(name, "all-to-all", payload_bytes, moved, moved, ranks=ranks), ranks)


def scattered_reduction(spec: RunSpec, name: str, payload_bytes: float, ranks: int) -> tuple[Message, ...]:
    """A reduce-scatter; on CPU an all-reduce of which each rank keeps its part, as gloo and XLA have no other."""
    return (all_reduce if spec.device == "cpu" else reduce_scatter)(name, payload_bytes, ranks)


def exchange(
    name: str, sent_bytes: float, received_bytes: float, count: float = 1, *, apart: int = 1, control: bool = False
) -> Message:
    """Plain sends and receives between two ranks."""
    payload_bytes = max(sent_bytes, received_bytes)
    return Message(name, "send", payload_bytes, sent_bytes, received_bytes, count, apart=apart, control=control)


def during(messages: Iterable[Message], phase: Phase, **fields: Any) -> tuple[Message, ...]:
    """The messages assigned to a phase of the step, with other fields replaced where given."""
    changed = {"phase": phase, **fields}
    return tuple(_with(message, changed) for message in messages)


def of_like_layers(message: Message, layers: int) -> Message:
    """One message that stands for the same message of `layers` neighbouring equal layers."""
    return _with(message, {"layers": layers, "count": message.count * layers}) if layers > 1 else message


def _with(message: Message, changed: dict[str, Any]) -> Message:
    """`dataclasses.replace` in a fifth of the time: a search over layouts of a deep model makes a million calls."""
    copy = object.__new__(Message)
    copy.__dict__.update(message.__dict__, **changed)
    return copy


def _unless_alone(message: Message, ranks: int) -> tuple[Message, ...]:
    return (message,) if ranks > 1 else ()
