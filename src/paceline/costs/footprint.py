"""What one step computes, sends and holds on each rank: pure numbers, the bridge from a strategy to predictions."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

from paceline.costs import precision
from paceline.costs.layers import LayerFacts
from paceline.costs.messages import Message
from paceline.costs.precision import HALF_BYTES, Numbers, autocast_copies, kept_bytes, parameter_width
from paceline.spec import Optimizer, Recompute, RunSpec

FLOAT_BYTES = precision.FLOAT_BYTES
# A backward pass computes gradients for inputs and for weights: about twice the forward's work.
BACKWARD_OVER_FORWARD = 2

Derived = TypeVar("Derived")


@dataclass(frozen=True)
class ModelFacts:
    """What a footprint needs to know of a model."""

    layers: tuple[LayerFacts, ...]
    input_elements: int = 0

    @cached_property
    def _derived(self) -> dict[tuple[object, ...], Any]:
        return {}

    def derive(self, key: tuple[object, ...], compute: Callable[[], Derived]) -> Derived:
        """A value derived from the model, computed once for each key: a search needs the same ones again and again."""
        if key not in self._derived:
            self._derived[key] = compute()
        value: Derived = self._derived[key]
        return value

    @cached_property
    def runs(self) -> tuple[tuple[LayerFacts, int], ...]:
        """Runs of neighbouring layers that differ only in name, each as its first layer and its length."""
        runs: list[tuple[LayerFacts, int]] = []
        for layer in self.layers:
            if runs and replace(runs[-1][0], name=layer.name) == layer:
                runs[-1] = runs[-1][0], runs[-1][1] + 1
            else:
                runs.append((layer, 1))
        return tuple(runs)

    @cached_property
    def parameters(self) -> int:
        """Trainable numbers in the whole model."""
        return sum(layer.parameters for layer in self.layers)

    @cached_property
    def tensors(self) -> int:
        """Trainable arrays in the whole model."""
        return sum(layer.tensors for layer in self.layers)

    @cached_property
    def parameter_bytes(self) -> int:
        """The size in single precision of what is trained, and so of its gradients."""
        return self.parameters * FLOAT_BYTES

    @cached_property
    def unfrozen(self) -> "ModelFacts":
        """The model as if all its parameters were trained: what is held and gathered."""
        if not any(layer.frozen_arrays for layer in self.layers):
            return self
        return ModelFacts(tuple(layer.unfrozen for layer in self.layers), self.input_elements)

    @cached_property
    def trained_share(self) -> float:
        """The share of all parameters that is trained."""
        return self.parameters / (self.unfrozen.parameters or 1)

    @cached_property
    def backward_flops(self) -> int:
        """Floating-point operations of one sample's backward pass.

        A layer that is frozen computes no gradients of its weights, and none at all before the first that is trained.
        """
        total, trained = 0, False
        for layer in self.layers:
            frozen = bool(layer.frozen_arrays) and not layer.parameters
            total += layer.forward_flops * (int(trained) if frozen else BACKWARD_OVER_FORWARD)
            trained = trained or layer.parameters > 0
        return total

    @cached_property
    def forward_flops(self) -> int:
        """Floating-point operations of one sample's forward pass."""
        return sum(layer.forward_flops for layer in self.layers)

    @cached_property
    def activation_bytes(self) -> int:
        """What stays of one sample for the backward pass: its inputs, and what each layer keeps."""
        return (self.input_elements + sum(layer.kept for layer in self.layers)) * FLOAT_BYTES

    def kept_bytes(self, numbers: Numbers) -> int:
        """Activation bytes of one sample in another precision; indices and statistics keep their size."""
        width = FLOAT_BYTES if numbers == "single" else HALF_BYTES
        return self.input_elements * width + sum(kept_bytes(layer, numbers) for layer in self.layers)


class Block(NamedTuple):
    """A transformer block as a rank runs it in one pass: what decides which kernels it is made of."""

    width: int
    heads: int
    sequence: int
    # Of the rank's part, and the ranks that have parts of it.
    parameters: int
    tensor: int
    context: int
    samples: int
    recompute: Recompute


@dataclass(frozen=True)
class RankWork:
    """What a rank computes in one pass: its part of the model, and its samples (counted as whole sequences)."""

    model: ModelFacts
    samples: float
    # Over how many ranks its layers are split.
    ways: int = 1
    recompute: Recompute = "none"
    # Whether the loss is its own.
    last: bool = True
    # Over how many ranks the positions of what is not split are divided.
    stretches: int = 1
    # Whether parameters and inputs are cast as a whole, where it is otherwise than the strategy does it.
    cast: bool | None = None
    # Whether its parameters are gathered layer by layer.
    gathers: bool = False
    # Over how many ranks sequences are divided, where each gathers the keys and values of all.
    context: int = 1
    # Whether parameters are PyTorch's DTensors, split by it and by FSDP2; other programs do that by hand or by FSDP1.
    by_dtensor: bool = True

    @cached_property
    def block(self) -> Block | None:
        """The first of its transformer blocks, which are alike as a rule."""
        layer = next((layer for layer, _ in self.model.runs if layer.heads), None)
        width = dict(layer.arrays).get("norm1_scale", (0,))[0] if layer else 0
        if layer is None or not width:
            return None
        sequence, samples = layer.output_elements // width, max(1, round(self.samples))
        return Block(
            width, layer.heads or 1, sequence, layer.parameters, self.ways, self.context, samples, self.recompute
        )


@dataclass(frozen=True)
class RankFootprint:
    """One step of `ranks` processes that do the same."""

    role: str
    ranks: int
    flops: float = 0
    messages: tuple[Message, ...] = ()
    parameter_bytes: float = 0
    gradient_bytes: float = 0
    optimizer_bytes: float = 0
    activation_bytes: float = 0
    # What one of its passes computes, where that is a part of the model or of its operations.
    work: RankWork | None = field(default=None, compare=False)

    @property
    def sent_bytes(self) -> float:
        """Bytes that one of these ranks puts on the link in a step."""
        return sum(message.sent_bytes * message.count for message in self.messages)

    @property
    def received_bytes(self) -> float:
        """Bytes that one of these ranks takes off the link in a step."""
        return sum(message.received_bytes * message.count for message in self.messages)

    @property
    def held_bytes(self) -> float:
        """Bytes that one of these ranks holds at the peak of a step."""
        return self.parameter_bytes + self.gradient_bytes + self.optimizer_bytes + self.activation_bytes


@dataclass(frozen=True)
class Stages:
    """How the workers of one pipeline take turns: `workers` in a line, `replicas` lines side by side."""

    workers: int
    microbatches: int
    schedule: str
    stages_per_worker: int = 1
    replicas: int = 1
    # How far the rank numbers of neighbours in a line are from each other.
    apart: int = 1
    # Times that all micro-batches go through the line in one step.
    accumulation: int = 1
    # Ranks that each layer of a stage is split over.
    split: int = 1


@dataclass(frozen=True)
class Footprint:
    """One step of a run: its ranks in groups of equals, in rank order where it matters."""

    groups: tuple[RankFootprint, ...]
    # Where layers are placed on workers that wait for each other.
    stages: Stages | None = None

    @property
    def ranks(self) -> int:
        """Processes of the run."""
        return sum(group.ranks for group in self.groups)

    @property
    def sent_bytes(self) -> float:
        """Bytes that all ranks together put on the link in a step."""
        return sum(group.sent_bytes * group.ranks for group in self.groups)

    @property
    def heaviest(self) -> RankFootprint:
        """The rank that holds most."""
        return max(self.groups, key=lambda group: group.held_bytes)


def in_groups(ranks: Iterable[RankFootprint], stages: Stages | None = None) -> Footprint:
    """Groups ranks, listed in rank order, into a footprint: neighbours that do the same become one group."""
    groups: list[RankFootprint] = []
    for rank in ranks:
        # Most that differ do so in what they keep of activations, which is quickly seen.
        kept = groups[-1].activation_bytes if groups else None
        if kept == rank.activation_bytes and replace(groups[-1], ranks=rank.ranks) == rank:
            groups[-1] = replace(rank, ranks=groups[-1].ranks + rank.ranks)
        else:
            groups.append(rank)
    return Footprint(tuple(groups), stages)


def training_flops(model: ModelFacts, samples: float) -> float:
    """Floating-point operations of the forward and backward pass of a batch."""
    return (model.forward_flops + model.backward_flops) * samples


def optimizer_bytes(settings: Optimizer, parameters: float, tensors: int, width: int = FLOAT_BYTES) -> float:
    """Bytes of optimizer state, in the parameters' precision; Adam and Adagrad also keep a step counter per array."""
    counters = tensors * FLOAT_BYTES
    match settings.name:
        case "adam" | "adamw":
            return 2 * parameters * width + counters
        case "adagrad":
            return parameters * width + counters
        case "sgd":
            return parameters * width if settings.momentum else 0
        case "lbfgs":
            # Pairs of vectors, and the last direction and gradient.
            return (2 * settings.history + 2) * parameters * width


def in_one_pass(spec: RunSpec) -> RunSpec:
    """The same run with the samples of only one of its accumulation passes."""
    samples = spec.samples_per_step // spec.accumulation
    return spec.model_copy(update={"global_batch": samples, "local_batch": None, "accumulation": 1})


def in_all_passes(group: RankFootprint, passes: int) -> RankFootprint:
    """The work of a rank that makes one pass `passes` times in a step, each with its own transfers.

    The sum of all gradients is there beside those of the pass under way.
    """
    if passes == 1:
        return group
    return replace(
        group,
        flops=group.flops * passes,
        messages=tuple(replace(message, count=message.count * passes) for message in group.messages),
        gradient_bytes=2 * group.gradient_bytes,
    )


def trainer(
    spec: RunSpec, model: ModelFacts, messages: tuple[Message, ...] = (), *, samples: int | None = None,
    numbers: Numbers = "single", **fields: Any,
) -> RankFootprint:  # fmt: skip
    """Workers that each hold all of `model` and train it on a share of the batch; `fields` override the defaults."""
    samples = spec.samples_per_step // spec.workers if samples is None else samples
    width = parameter_width(spec)
    usual: dict[str, Any] = {
        "ranks": spec.workers,
        "flops": training_flops(model, samples),
        "parameter_bytes": model.unfrozen.parameters * width,
        "gradient_bytes": model.parameters * width,
        "optimizer_bytes": optimizer_bytes(spec.optimizer, model.parameters, model.tensors, width),
        "activation_bytes": model.kept_bytes(numbers) * samples + autocast_copies(model.layers, numbers),
        "work": RankWork(model, samples / spec.accumulation, recompute=spec.recompute),
    }
    return RankFootprint("worker", messages=messages, **usual | fields)
