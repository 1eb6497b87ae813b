"""Stages of a model that is no plain sequence, cut between its blocks.

Each stage runs the model's own forward function, so that whatever happens around the blocks happens as it does in the
whole: blocks of stages before let their input pass, the first block of the stage is given what came from the stage
before, and the first block of the next stage ends the pass. Layers that belong to other stages hold nothing.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from paceline.costs.cuts import cut
from paceline.frameworks.torch.found_blocks import HoldsBlocks, find_blocks
from paceline.frameworks.torch.pipeline.follow import CannotCutError, Chain, first_argument, follow

# Not 2: a sequence of two positions is more likely than one of three, and must not be taken for the samples.
FOLLOWED_SAMPLES = 3


class _ReachedError(Exception):
    """Ends a pass where the next stage begins."""

    def __init__(self, activations: Tensor) -> None:
        super().__init__()
        self.activations = activations


@dataclass
class _Inbox:
    """What came from the stage before, during a pass."""

    received: Tensor | None = None


class _OtherBlock(nn.Module):
    """In the place of a block of another stage; what other code reads from that block, it reads here."""

    def __init__(self, block: nn.Module, extras: tuple[Any, ...] | None) -> None:
        super().__init__()
        for name, value in vars(block).items():
            if name not in self.__dict__ and name != "forward" and not isinstance(value, Tensor):
                self.__dict__[name] = value
        self._extras = extras

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Lets its input pass."""
        return self._returned(first_argument(args, kwargs))

    def _returned(self, activations: Any) -> Any:
        return activations if self._extras is None else (activations, *self._extras)


class _BlockBefore(_OtherBlock):
    """The last block of the stage before: it gives what came from there."""

    def __init__(self, block: nn.Module, extras: tuple[Any, ...] | None, inbox: _Inbox) -> None:
        super().__init__(block, extras)
        self._inbox = inbox

    def forward(self, *_args: Any, **_kwargs: Any) -> Any:
        """What was received."""
        return self._returned(self._inbox.received)


class _BlockBehind(_OtherBlock):
    """The first block of the next stage."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Ends the pass."""
        raise _ReachedError(first_argument(args, kwargs))


class FoundStage(HoldsBlocks):
    """A stretch of blocks with what runs around them."""

    def __init__(self, model: nn.Module, block_names: Sequence[str], inputs: Tensor, inbox: _Inbox | None) -> None:
        super().__init__()
        self.model = model
        self.block_names = tuple(f"model.{name}" for name in block_names)
        self._input_shape, self._input_dtype = tuple(inputs.shape[1:]), inputs.dtype
        self._inbox = inbox

    def forward(self, received: Tensor) -> Tensor:
        """Samples on the first stage, else what the stage before gave."""
        inputs = received
        if self._inbox is not None:
            # Only their shape matters: nothing that is computed from them reaches the blocks.
            inputs = torch.zeros((len(received), *self._input_shape), dtype=self._input_dtype, device=received.device)
            self._inbox.received = received
        try:
            output: Tensor = self.model(inputs)
        except _ReachedError as reached:
            output = reached.activations
        finally:
            if self._inbox is not None:
                self._inbox.received = None
        return output


def chain_of(module: nn.Module, inputs: Tensor) -> Chain:
    """The model's blocks as they run; raises `CannotCutError` with why it cannot be cut between them."""
    blocks = find_blocks(module)
    if blocks is None:
        raise CannotCutError("it has no list of like blocks")
    try:
        return follow(module, blocks, inputs[:FOLLOWED_SAMPLES])
    except CannotCutError:
        raise
    except Exception as error:  # what a user's model raises while it is watched can be anything
        raise CannotCutError(f"it cannot be followed ({type(error).__name__}: {error})") from error


def found_stages(module: nn.Module, chain: Chain, count: int, inputs: Tensor) -> list[nn.Module]:
    """Stages whose blocks cost about the same."""
    if count > len(chain.names):
        raise CannotCutError(f"it has {len(chain.names)} blocks and {count} stages were asked for")
    stretches = cut(chain.flops, [True] * len(chain.names), count)
    stage_of = [number for number, stretch in enumerate(stretches) for _ in stretch]
    return [_stage(module, chain, number, stage_of, inputs) for number in range(count)]


def _stage(module: nn.Module, chain: Chain, number: int, stage_of: Sequence[int], inputs: Tensor) -> FoundStage:
    inbox = _Inbox() if number else None
    memo, held = _blocks_of_stage(module, chain, number, stage_of, inbox)
    # Code behind a block runs in the stage of that block, code before all of them in the first.
    kept = {name for name, place in chain.positions.items() if stage_of[max(0, place - 1)] == number}
    emptied = set[int]()
    for name, parameter in module.named_parameters():
        if name in chain.positions:
            hollow = parameter if name in kept else _hollow(chain, name, parameter)
            memo[id(parameter)] = hollow
            emptied |= {id(hollow)} - {id(parameter)}
    memo |= {id(buffer): buffer for _, buffer in module.named_buffers()}
    skeleton = copy.deepcopy(module, memo)
    within = tuple(f"{block}." for block in held)
    for name, child in skeleton.named_modules():
        if name not in held and not name.startswith(within):
            _empty(child, name, chain, kept, emptied)
    return FoundStage(skeleton, held, inputs, inbox)


def _blocks_of_stage(
    module: nn.Module, chain: Chain, number: int, stage_of: Sequence[int], inbox: _Inbox | None
) -> tuple[dict[int, Any], list[str]]:
    """What stands in the place of each block, by the block's identity, and the names of the stage's own."""
    first, behind = stage_of.index(number), len(stage_of) - stage_of[::-1].index(number)
    standing: dict[int, Any] = {}
    for index, name in enumerate(chain.names):
        block, extras = module.get_submodule(name), chain.extras[index]
        if first <= index < behind:
            standing[id(block)] = block
        elif index == first - 1:
            assert inbox is not None
            standing[id(block)] = _BlockBefore(block, extras, inbox)
        else:
            standing[id(block)] = (_BlockBehind if index == behind else _OtherBlock)(block, extras)
    return standing, list(chain.names[first:behind])


def _hollow(chain: Chain, name: str, parameter: nn.Parameter) -> nn.Parameter:
    """In the place of a parameter of another stage: nothing where its layer is not run, else zeros."""
    is_run = name.rpartition(".")[0] not in chain.outputs
    empty = torch.zeros_like(parameter) if is_run else parameter.new_empty(0)
    return nn.Parameter(empty.detach(), requires_grad=False)


def _empty(child: nn.Module, name: str, chain: Chain, kept: set[str], emptied: set[int]) -> None:
    """Takes from a module what belongs to other stages; one that has nothing left gives zeros."""
    mine = [parameter for parameter in child._parameters.values() if parameter is not None]
    for key, parameter in list(child._parameters.items()):
        if id(parameter) in emptied:
            assert parameter is not None
            del child._parameters[key]
            child.register_buffer(key, parameter.detach(), persistent=False)
    for key in child._buffers:
        path = f"{name}.{key}" if name else key
        if path in chain.positions and path not in kept:
            child._non_persistent_buffers_set.add(key)
    if name in chain.outputs and mine and all(id(parameter) in emptied for parameter in mine):
        child.forward = _zeros(*chain.outputs[name], chain.samples)


def _zeros(shape: torch.Size, dtype: torch.dtype, samples: int) -> Callable[..., Tensor]:
    """A forward function that computes nothing and gives zeros of the right shape."""

    def forward(inputs: Tensor, *_others: Any, **_named: Any) -> Tensor:
        batched = shape[0] == samples
        sizes = (len(inputs), *shape[1:]) if batched else tuple(shape)
        return torch.zeros((), dtype=dtype, device=inputs.device).expand(sizes)

    return forward
