"""What one step computes, sends and holds: pure numbers, the bridge from a strategy to predictions."""

from dataclasses import dataclass

FLOAT_BYTES = 4


@dataclass(frozen=True)
class LayerFacts:
    """One layer's size per sample, read from the model and never typed by hand."""

    name: str
    parameters: int
    forward_flops: int
    output_elements: int


@dataclass(frozen=True)
class ModelFacts:
    """What a footprint needs to know of a model."""

    layers: tuple[LayerFacts, ...]

    @property
    def parameters(self) -> int:
        """Trainable numbers in the whole model."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def parameter_bytes(self) -> int:
        """The model's size in single precision."""
        return self.parameters * FLOAT_BYTES

    @property
    def forward_flops(self) -> int:
        """Floating-point operations of one sample's forward pass."""
        return sum(layer.forward_flops for layer in self.layers)

    @property
    def activation_bytes(self) -> int:
        """Outputs of all layers for one sample, kept for the backward pass."""
        return sum(layer.output_elements for layer in self.layers) * FLOAT_BYTES


@dataclass(frozen=True)
class Message:
    """One kind of transfer a rank takes part in during a step."""

    name: str
    payload_bytes: int
    sent_bytes: int
    count: int = 1


@dataclass(frozen=True)
class Footprint:
    """One step of the rank that does and holds most."""

    flops: int
    messages: tuple[Message, ...]
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    activation_bytes: int

    @property
    def sent_bytes(self) -> int:
        """Bytes that the rank puts on the link in one step."""
        return sum(message.sent_bytes * message.count for message in self.messages)

    @property
    def held_bytes(self) -> int:
        """Bytes that the rank holds at the peak of a step."""
        return self.parameter_bytes + self.gradient_bytes + self.optimizer_bytes + self.activation_bytes


# A backward pass computes gradients for inputs and for weights: about twice the forward's work.
BACKWARD_OVER_FORWARD = 2
# State tensors per parameter that each optimizer keeps.
OPTIMIZER_STATES = {"adam": 2, "adagrad": 1, "sgd": 0}


def training_flops(model: ModelFacts, samples: int) -> int:
    """Forward and backward of a batch."""
    return model.forward_flops * (1 + BACKWARD_OVER_FORWARD) * samples


def optimizer_bytes(name: str, momentum: float, parameter_bytes: int) -> int:
    """State that the optimizer keeps beside the parameters."""
    states = OPTIMIZER_STATES[name] + (1 if name == "sgd" and momentum else 0)
    return states * parameter_bytes
