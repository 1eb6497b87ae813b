"""A PyTorch model cut into stages: by the user's `stages`, any `nn.Sequential` by cost, others between their blocks.

Every process cuts the whole model alike; two samples show what crosses each cut, and that the result is the model's.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from paceline.contract.context import Context
from paceline.costs.cuts import cut, most_stages
from paceline.errors import ModelError
from paceline.frameworks.torch.found_blocks import HoldsBlocks
from paceline.frameworks.torch.pipeline.follow import CannotCutError
from paceline.frameworks.torch.pipeline.found import FOLLOWED_SAMPLES, chain_of, found_stages
from paceline.frameworks.torch.precision import half_of, hold_in_half, in_type, set_precision
from paceline.frameworks.torch.resident_data import IMAGE_DIMENSIONS, ResidentData
from paceline.frameworks.torch.segments import TIMED_SAMPLES, TRIAL_SAMPLES, Segment, costs_of, segments_of
from paceline.frameworks.torch.training import build
from paceline.spec import RunSpec
from paceline.workloads.user_model import UserModel, call_user_code

# The stages make the same operations as the whole, so only the order of sums may differ.
CLOSE = {"rtol": 1e-3, "atol": 1e-4}


@dataclass(frozen=True)
class Edge:
    """Shape and type of the tensor that crosses a cut, for one sample."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def empty(self, samples: int, device: torch.device) -> Tensor:
        """An empty tensor for that many samples."""
        return torch.empty((samples, *self.shape), dtype=self.dtype, device=device)

    def in_type(self, kind: torch.dtype) -> "Edge":
        """The edge in another floating-point type; integers stay."""
        return replace(self, dtype=kind) if self.dtype.is_floating_point else self


class StageModule(nn.Module):
    """A stretch of the model. Channels-last images cross a cut as they lie in memory, so that no copy is made."""

    # Whether what it gives must not be a view, which schedules that go back in two passes could not take apart.
    gives_no_view = False

    def __init__(self, layers: nn.Module, unpack: bool) -> None:
        super().__init__()
        self.layers, self.unpack, self.pack = layers, unpack, False
        # What it casts inputs and outputs to, and in which context it computes.
        self.takes: torch.dtype | None = None
        self.gives: torch.dtype | None = None
        self.precision: Callable[[], AbstractContextManager[Any]] = nullcontext

    def forward(self, inputs: Tensor) -> Tensor:
        """Takes the output of the stage before and gives the input of the stage after."""
        inputs = inputs if self.takes is None else in_type(inputs, self.takes)
        with self.precision():
            outputs: Tensor = self.layers(inputs.permute(0, 3, 1, 2) if self.unpack else inputs)
        outputs = outputs if self.gives is None else in_type(outputs, self.gives)
        outputs = (outputs.permute(0, 2, 3, 1) if self.pack else outputs).contiguous()
        return outputs.clone() if self.gives_no_view and outputs._is_view() else outputs


@dataclass(frozen=True)
class Stage:
    """One stage: its module, what it takes and gives, and its tensors' names in the whole model."""

    index: int
    count: int
    module: StageModule
    input: Edge
    output: Edge
    # Name in the whole model ─► name in the stage.
    names: dict[str, str]

    @property
    def tied(self) -> list[nn.Parameter]:
        """Parameters that the first and the last stage both have."""
        layers = self.module.layers
        return [layers.get_parameter(name) for name in layers.tied] if isinstance(layers, HoldsBlocks) else []

    @property
    def layer_names(self) -> list[str]:
        """Names of its blocks, where the model was cut between blocks, else of its layers."""
        layers = self.module.layers
        if isinstance(layers, HoldsBlocks):
            return [name.removeprefix("model.") for name in layers.block_names]
        return [name for name, _ in layers.named_children()]

    @property
    def first(self) -> bool:
        """Whether it is the first stage, which takes the inputs."""
        return self.index == 0

    @property
    def last(self) -> bool:
        """Whether it is the last stage, which gives the outputs."""
        return self.index == self.count - 1


def in_half(spec: RunSpec, stage: Stage) -> Stage:
    """The stage in the run's precision: two-byte numbers cross cuts, and the outputs are in single precision."""
    half = half_of(spec)
    if half is None:
        return stage
    hold_in_half(spec, stage.module)
    module = stage.module
    module.takes = half if spec.precision == "bf16-pure" else None
    module.gives = torch.float32 if stage.last else half
    module.precision = set_precision(spec)
    return replace(
        stage,
        input=stage.input if stage.first else stage.input.in_type(half),
        output=stage.output if stage.last else stage.output.in_type(half),
    )


def cut_model(
    context: Context,
    count: int,
    balance: str,
    device: torch.device,
    prepare: Callable[[nn.Module], None] = lambda _module: None,
) -> list[Stage]:
    """All stages, on the CPU; a model that cannot be cut is a `ModelError`. `prepare` is called before the cut."""
    module = build(context, torch.device("cpu"))
    prepare(module)
    channels_last = context.spec.memory_format == "channels_last"
    data = ResidentData.load(context.data, torch.device("cpu"), channels_last)
    inputs, _ = data.batch(data.train, slice(0, TIMED_SAMPLES))
    user_model = context.model.user_model
    module.eval()
    if user_model is not None and user_model.stages is not None:
        parts = _user_stages(user_model, user_model.stages, module, count)
    elif isinstance(module, nn.Sequential):
        segments = segments_of(context, module)
        costs = costs_of(segments, inputs, balance, device)
        parts = _balanced_parts(context, segments, costs, count)
    else:
        parts = _found_parts(context, module, inputs, count, balance)
    stages = _checked_stages(context, module, parts, inputs[:TRIAL_SAMPLES], channels_last)
    module.train()
    return stages


def _balanced_parts(
    context: Context, segments: Sequence[Segment], costs: Sequence[float], count: int
) -> list[nn.Module]:
    """Parts of an `nn.Sequential` with costs as even as possible."""
    trainable = [segment.trainable for segment in segments]
    if count > most_stages(trainable):
        label = context.model_label
        raise ModelError(
            f"{label} has {most_stages(trainable)} layers to cut between and {count} stages were asked for; "
            f"use fewer workers, or fewer stages per worker"
        )
    return [
        Segment(tuple(child for index in stretch for child in segments[index].children)).module
        for stretch in cut(costs, trainable, count)
    ]


def _found_parts(context: Context, module: nn.Module, inputs: Tensor, count: int, balance: str) -> list[nn.Module]:
    """Parts of a user's model that is no sequence, cut between its blocks."""
    assert context.model.user_model is not None
    label, advice = context.model.user_model.label, "add a function stages(model, count) that returns its stages"
    try:
        if balance == "measured":
            raise CannotCutError("only plain sequences are cut by measured time (leave knob balance out)")
        return found_stages(module, chain_of(module, inputs), count, inputs[:FOLLOWED_SAMPLES])
    except CannotCutError as reason:
        raise ModelError(f"{label} is no nn.Sequential and cannot be cut by itself: {reason}; {advice}") from reason


def _user_stages(user_model: UserModel, function: Any, module: nn.Module, count: int) -> list[nn.Module]:
    """What the file's `stages` returns, checked."""
    what = f"stages(model, {count}) of {user_model.label}"
    stages = call_user_code(what, function, module, count)
    if not isinstance(stages, list | tuple) or not all(isinstance(stage, nn.Module) for stage in stages):
        raise ModelError(f"{what} must return a list of modules, and returned {_described(stages)}")
    if len(stages) != count:
        raise ModelError(f"{what} returned {len(stages)} modules; return {count}, one for each stage")
    if not any(parameter.requires_grad for parameter in stages[0].parameters()):
        raise ModelError(f"{what}: the first stage has no parameters; give it the first layer that has some")
    return list(stages)


def _described(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"a list of {', '.join(sorted({type(item).__name__ for item in value})) or 'nothing'}"
    return type(value).__name__


def _names(label: str, module: nn.Module, stages: Sequence[nn.Module]) -> list[dict[str, str]]:
    """For each stage, its tensors' names in the whole model; every one must be in exactly one stage."""
    whole = module.state_dict(keep_vars=True)
    parts = [
        {id(tensor): name for name, tensor in stage.state_dict(keep_vars=True).items() if id(tensor) not in copies}
        for stage, copies in zip(stages, map(_copies, stages), strict=True)
    ]
    for number, part in enumerate(parts):
        known = {id(tensor) for tensor in whole.values()}
        if strangers := [name for tensor, name in part.items() if tensor not in known]:
            raise ModelError(
                f"stage {number} of {label} has {strangers[0]}, which is no part of the model; "
                f"build the stages from the model's own layers"
            )
    for name, tensor in whole.items():
        holders = [number for number, part in enumerate(parts) if id(tensor) in part]
        if not holders:
            raise ModelError(f"{name} of {label} is in none of the {len(stages)} stages; put each layer into one stage")
        if len(holders) > 1:
            raise ModelError(
                f"{name} of {label} is in stages {holders[0]} and {holders[1]}; layers that share it must be in one"
            )
    return [{name: part[id(tensor)] for name, tensor in whole.items() if id(tensor) in part} for part in parts]


def _copies(stage: nn.Module) -> set[int]:
    """Parameters of other stages that this one has a copy of, by identity."""
    copied = isinstance(stage, HoldsBlocks) and stage.has_copies
    return {id(stage.get_parameter(name)) for name in stage.tied} if copied else set()


def _checked_stages(
    context: Context, module: nn.Module, parts: Sequence[nn.Module], inputs: Tensor, channels_last: bool
) -> list[Stage]:
    """The parts as stages, after samples through all of them gave the whole model's output."""
    label = context.model_label
    names = _names(label, module, parts)
    stages: list[Stage] = []
    activation, unpack = inputs, False
    for number, part in enumerate(parts):
        wrapped = StageModule(part, unpack)
        output = _try(label, number, wrapped, activation)
        last = number == len(parts) - 1
        unpack = wrapped.pack = channels_last and output.ndim == IMAGE_DIMENSIONS and not last
        if unpack:
            output = output.permute(0, 2, 3, 1)
        edges = [Edge(tuple(tensor.shape[1:]), tensor.dtype) for tensor in (activation, output)]
        in_stage = {whole: f"layers.{name}" for whole, name in names[number].items()}
        stages.append(Stage(number, len(parts), wrapped, edges[0], edges[1], in_stage))
        activation = output
    with torch.no_grad():
        expected = module(inputs)
    if activation.shape != expected.shape or not torch.allclose(activation, expected, **CLOSE):
        raise ModelError(
            f"the stages of {label} one after another do not give what the model gives; "
            f"each must take the output of the one before, and nothing may be left out"
        )
    return stages


def _try(label: str, number: int, stage: nn.Module, inputs: Tensor) -> Tensor:
    try:
        # As in training, where an input that came from another process cannot be worked on in place.
        with torch.enable_grad():
            output = stage(inputs.detach().requires_grad_(number > 0 and inputs.is_floating_point())).detach()
    except Exception as error:
        raise ModelError(
            f"stage {number} of {label} does not take what comes before it (shape {tuple(inputs.shape)}): "
            f"{type(error).__name__}: {error}; a stage takes one tensor and gives one"
        ) from error
    if output.ndim == 0 or len(output) != len(inputs):
        raise ModelError(
            f"stage {number} of {label} gives a tensor of shape {tuple(output.shape)} for {len(inputs)} samples; "
            f"its first dimension must be the samples"
        )
    return output
