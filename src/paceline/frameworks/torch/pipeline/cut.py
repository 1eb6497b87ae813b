"""A PyTorch model cut into stages: built-in models and any `nn.Sequential` by cost, others by the user's `stages`.

Every process builds the whole model, cuts it in the same way and keeps its own pieces. Two samples are sent through to
learn what crosses each cut, and to be sure that the pieces in a row give what the model gives.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from paceline.contract.context import Context
from paceline.costs.cuts import cut, most_stages
from paceline.errors import ModelError
from paceline.frameworks.torch.training import IMAGE_DIMENSIONS, ResidentData, build
from paceline.frameworks.torch.units import TIMED_SAMPLES, TRIED_SAMPLES, Unit, costs_of, units_of
from paceline.workloads.own import OwnModel, call_own

# The pieces make the same operations as the whole, so only the order of sums may differ.
CLOSE = {"rtol": 1e-3, "atol": 1e-4}


@dataclass(frozen=True)
class Edge:
    """What crosses a cut, for one sample."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def empty(self, samples: int, device: torch.device) -> Tensor:
        """Room for that many samples."""
        return torch.empty((samples, *self.shape), dtype=self.dtype, device=device)


class StageModule(nn.Module):
    """A stretch of the model. Channels-last images cross a cut as they lie in memory, so that no copy is made."""

    def __init__(self, layers: nn.Module, unpack: bool) -> None:
        super().__init__()
        self.layers, self.unpack, self.pack = layers, unpack, False

    def forward(self, given: Tensor) -> Tensor:
        """From the stage before to the stage after."""
        made: Tensor = self.layers(given.permute(0, 3, 1, 2) if self.unpack else given)
        return (made.permute(0, 2, 3, 1) if self.pack else made).contiguous()


@dataclass(frozen=True)
class Piece:
    """One stage: its module, what it takes and gives, and its tensors' names in the whole model."""

    index: int
    count: int
    module: StageModule
    given: Edge
    made: Edge
    # Name in the whole model ─► name in the stage.
    names: dict[str, str]

    @property
    def first(self) -> bool:
        """Whether it takes the inputs."""
        return self.index == 0

    @property
    def last(self) -> bool:
        """Whether it gives the outputs."""
        return self.index == self.count - 1


def cut_model(context: Context, count: int, balance: str, device: torch.device) -> list[Piece]:
    """All stages, on the CPU; a model that cannot be cut so is a `ModelError`."""
    module = build(context, torch.device("cpu"))
    channels_last = context.spec.memory_format == "channels_last"
    data = ResidentData.load(context.data, torch.device("cpu"), channels_last)
    inputs, _ = data.batch(data.train, slice(0, TIMED_SAMPLES))
    own = context.model.own
    module.eval()
    if own is not None and own.stages is not None:
        stages = _own_stages(own, own.stages, module, count)
    elif isinstance(module, nn.Sequential):
        units = units_of(context, module)
        costs = costs_of(units, inputs, balance, device)
        stages = _stretches(context, units, costs, count)
    else:
        label = own.label if own else context.spec.workload
        raise ModelError(f"{label} is no nn.Sequential; add a function stages(model, count) that returns its stages")
    pieces = _pieces(context, module, stages, inputs[:TRIED_SAMPLES], channels_last)
    module.train()
    return pieces


def _stretches(context: Context, units: Sequence[Unit], costs: Sequence[float], count: int) -> list[nn.Module]:
    trainable = [unit.trainable for unit in units]
    if count > most_stages(trainable):
        label = context.model.own.label if context.model.own else context.spec.workload
        raise ModelError(
            f"{label} has {most_stages(trainable)} layers to cut between and {count} stages were asked for; "
            f"use fewer workers, or fewer stages per worker"
        )
    return [
        Unit(tuple(child for index in stretch for child in units[index].children)).module
        for stretch in cut(costs, trainable, count)
    ]


def _own_stages(own: OwnModel, function: Any, module: nn.Module, count: int) -> list[nn.Module]:
    """What the file's `stages` returns, checked."""
    what = f"stages(model, {count}) of {own.label}"
    stages = call_own(what, function, module, count)
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
    parts = [{id(tensor): name for name, tensor in stage.state_dict(keep_vars=True).items()} for stage in stages]
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


def _pieces(
    context: Context, module: nn.Module, stages: Sequence[nn.Module], inputs: Tensor, channels_last: bool
) -> list[Piece]:
    label = context.model.own.label if context.model.own else context.spec.workload
    names = _names(label, module, stages)
    pieces: list[Piece] = []
    given, unpack = inputs, False
    for number, stage in enumerate(stages):
        wrapped = StageModule(stage, unpack)
        made = _try(label, number, wrapped, given)
        last = number == len(stages) - 1
        unpack = wrapped.pack = channels_last and made.ndim == IMAGE_DIMENSIONS and not last
        if unpack:
            made = made.permute(0, 2, 3, 1)
        edges = [Edge(tuple(tensor.shape[1:]), tensor.dtype) for tensor in (given, made)]
        in_stage = {whole: f"layers.{name}" for whole, name in names[number].items()}
        pieces.append(Piece(number, len(stages), wrapped, edges[0], edges[1], in_stage))
        given = made
    with torch.no_grad():
        expected = module(inputs)
    if given.shape != expected.shape or not torch.allclose(given, expected, **CLOSE):
        raise ModelError(
            f"the stages of {label} one after another do not give what the model gives; "
            f"each must take the output of the one before, and nothing may be left out"
        )
    return pieces


def _try(label: str, number: int, stage: nn.Module, given: Tensor) -> Tensor:
    try:
        # As in training, where an input that came from another process cannot be worked on in place.
        with torch.enable_grad():
            made = stage(given.detach().requires_grad_(number > 0 and given.is_floating_point())).detach()
    except Exception as error:
        raise ModelError(
            f"stage {number} of {label} does not take what comes before it (shape {tuple(given.shape)}): "
            f"{type(error).__name__}: {error}; a stage takes one tensor and gives one"
        ) from error
    if made.ndim == 0 or len(made) != len(given):
        raise ModelError(
            f"stage {number} of {label} gives a tensor of shape {tuple(made.shape)} for {len(given)} samples; "
            f"its first dimension must be the samples"
        )
    return made
