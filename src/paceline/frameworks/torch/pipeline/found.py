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
from paceline.frameworks.torch.pipeline.follow import CannotCutError, Chain, LayerOutput, first_argument, follow

# Not 2: a sequence of two positions is more likely than one of three, and must not be taken for the samples.
FOLLOWED_SAMPLES = 3
# The stages make the operations of the whole.
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


class _ReachedError(Exception):
    """Ends a pass where the next stage begins."""

    def __init__(self, activations: Tensor) -> None:
        super().__init__()
        self.activations = activations


@dataclass
class _Inbox:
    """Holds what a stage received from the previous one during a pass."""

    received: Tensor | None = None

    def take(self, _activations: Any) -> Tensor | None:
        """Returns what was received, in place of the pass's own value."""
        return self.received


def _hollow_block(block: nn.Module, forward: Callable[[Any], Any], extras: tuple[Any, ...] | None) -> nn.Module:
    """Stands in for a block of another stage: no tensors, but its other attributes can be read."""
    tensors = [*block.parameters(), *block.buffers()]
    hollow = copy.deepcopy(block, {id(tensor): tensor.detach().new_empty(0) for tensor in tensors})
    for child in hollow.modules():
        for name in [*child._parameters, *child._buffers]:
            empty = child._parameters.pop(name, None)
            child.register_buffer(name, child._buffers.get(name) if empty is None else empty, persistent=False)

    def pass_on(*args: Any, **kwargs: Any) -> Any:
        activations = forward(first_argument(args, kwargs))
        return activations if extras is None else (activations, *extras)

    hollow.forward = pass_on
    return hollow


def _unchanged(activations: Any) -> Any:
    return activations


def _end_pass(activations: Tensor) -> None:
    raise _ReachedError(activations)


class FoundStage(HoldsBlocks):
    """Some consecutive blocks, with the model's code that runs around them."""

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
    """Stages whose blocks cost about the same, after samples went through them; raises `CannotCutError`."""
    if count > len(chain.names):
        raise CannotCutError(f"it has {len(chain.names)} blocks and {count} stages were asked for")
    stretches = cut(chain.flops, [True] * len(chain.names), count)
    stage_of = [number for number, stretch in enumerate(stretches) for _ in stretch]
    try:
        stages: list[nn.Module] = [_stage(module, chain, number, stage_of, inputs) for number in range(count)]
        with torch.no_grad():
            activations, expected = inputs, module(inputs)
            for stage in stages:
                activations = stage(activations)
    except Exception as error:  # a user's code can miss what is not there in many ways
        raise CannotCutError(f"cut between its blocks it fails with {type(error).__name__}: {error}") from error
    # Of a model without numbers only shapes can be compared; a run compares numbers.
    if activations.shape != expected.shape or not (expected.is_meta or torch.allclose(activations, expected, **CLOSE)):
        raise CannotCutError("cut between its blocks it does not give what it gives whole")
    return stages


def _stage(module: nn.Module, chain: Chain, number: int, stage_of: Sequence[int], inputs: Tensor) -> FoundStage:
    inbox = _Inbox() if number else None
    memo, held = _blocks_of_stage(module, chain, number, stage_of, inbox)
    # Code behind a block runs in the stage of that block, code before all of them in the first.
    kept = {name for name, place in chain.positions.items() if stage_of[max(0, place - 1)] == number}
    is_last, emptied = number == stage_of[-1], set[int]()
    for name, parameter in module.named_parameters():
        if name in chain.tied and is_last and number:
            memo[id(parameter)] = nn.Parameter(parameter.detach().clone(), parameter.requires_grad)
        elif name in chain.positions:
            hollow = parameter if name in kept else _hollow(chain, name, parameter)
            memo[id(parameter)] = hollow
            emptied |= {id(hollow)} - {id(parameter)}
    memo |= {id(buffer): buffer for _, buffer in module.named_buffers()}
    skeleton = copy.deepcopy(module, memo)
    within = tuple(f"{block}." for block in held)
    for name, child in skeleton.named_modules():
        if name not in held and not name.startswith(within):
            _empty(child, name, chain, kept, emptied)
        if name in chain.outputs and stage_of[max(0, chain.outputs[name].position - 1)] != number:
            child.forward = _zeros(chain.outputs[name], chain.samples)
    stage = FoundStage(skeleton, held, inputs, inbox)
    if is_last != (number == 0):
        stage.tied, stage.has_copies = tuple(f"model.{name}" for name in sorted(chain.tied)), is_last
    return stage


def _blocks_of_stage(
    module: nn.Module, chain: Chain, number: int, stage_of: Sequence[int], inbox: _Inbox | None
) -> tuple[dict[int, Any], list[str]]:
    """The stand-in of each block, by the block's identity, and the names of the stage's own blocks."""
    first, behind = stage_of.index(number), len(stage_of) - stage_of[::-1].index(number)
    standing: dict[int, Any] = {}
    for index, name in enumerate(chain.names):
        block, extras = module.get_submodule(name), chain.extras[index]
        if first <= index < behind:
            standing[id(block)] = block
            continue
        # The last block of the stage before gives what came from there; the next stage's first ends the pass.
        give = inbox.take if inbox is not None and index == first - 1 else _end_pass if index == behind else _unchanged
        standing[id(block)] = _hollow_block(block, give, extras)
    return standing, list(chain.names[first:behind])


def _hollow(chain: Chain, name: str, parameter: nn.Parameter) -> nn.Parameter:
    """Stands in for a parameter of another stage: empty where its layer does not run, else zeros."""
    is_run = name.rpartition(".")[0] not in chain.outputs
    empty = torch.zeros_like(parameter) if is_run else parameter.new_empty(0)
    return nn.Parameter(empty.detach(), requires_grad=False)


def _empty(child: nn.Module, name: str, chain: Chain, kept: set[str], emptied: set[int]) -> None:
    """Removes from a module what belongs to other stages."""
    for key, parameter in list(child._parameters.items()):
        if id(parameter) in emptied:
            assert parameter is not None
            del child._parameters[key]
            child.register_buffer(key, parameter.detach(), persistent=False)
    for key in child._buffers:
        path = f"{name}.{key}" if name else key
        if path in chain.positions and path not in kept:
            child._non_persistent_buffers_set.add(key)


def _zeros(output: LayerOutput, samples: int) -> Callable[..., Tensor]:
    """A forward function for a layer of another stage: computes nothing and gives zeros of the right shape."""

    def forward(inputs: Tensor, *_others: Any, **_named: Any) -> Tensor:
        batched = output.shape[0] == samples
        sizes = (len(inputs), *output.shape[1:]) if batched else tuple(output.shape)
        return torch.zeros((), dtype=output.dtype, device=inputs.device).expand(sizes)

    return forward
