"""Follows a forward pass through the blocks of a model, to learn where it can be cut.

A cut before a block sends that block's first input and nothing else. So nothing that was computed from the samples or
from a parameter before the block may be used after it, and no parameter may be used on both sides.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from paceline.frameworks.torch.found_blocks import Blocks

# They ask a tensor for its shape and type alone.
_SHAPE_ONLY = ("zeros_like", "ones_like", "empty_like", "full_like", "new_zeros", "new_ones", "new_empty", "new_full",
               "new_empty_strided")  # fmt: skip


class CannotCutError(Exception):
    """Why a model cannot be cut between its blocks, as the end of a sentence about it."""


@dataclass(frozen=True)
class Chain:
    """A model's blocks in the order in which they run, and what runs before, between and after them."""

    names: tuple[str, ...]
    # Operations for all samples of each block, with what runs behind it; what runs before counts for the first.
    flops: tuple[float, ...]
    # What a block returns beside its first output, where it returns several things.
    extras: tuple[tuple[Any, ...] | None, ...]
    # Tensor outside the blocks ─► blocks that had begun when it was used.
    positions: dict[str, int]
    # Parameters that are used before and behind all blocks, as a head does that is tied to its embedding.
    tied: frozenset[str]
    outputs: dict[str, "LayerOutput"]
    samples: int


@dataclass(frozen=True)
class LayerOutput:
    """The output of a layer outside the blocks in the trial pass, and when it was computed."""

    shape: torch.Size
    dtype: torch.dtype
    # Blocks that had begun.
    position: int


@dataclass
class _Trial:
    begun: int = 0
    inside: bool = False
    names: list[str] = field(default_factory=list)
    extras: list[tuple[Any, ...] | None] = field(default_factory=list)
    flops: list[float] = field(default_factory=list)
    used: dict[str, set[int]] = field(default_factory=dict)
    outputs: dict[str, LayerOutput] = field(default_factory=dict)
    # First input of the block that runs, and first output of the one that ran last.
    hidden: Tensor | None = None
    output: Tensor | None = None


def first_argument(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a block works on: its first argument, by place or by name."""
    return next(iter((*args, *kwargs.values())), None)


class _Follower(TorchDispatchMode):
    """Notes where tensors of the model are used, and refuses what a cut would lose."""

    def __init__(self, trial: _Trial, module: nn.Module, inputs: Tensor) -> None:
        super().__init__()
        self._trial = trial
        tensors = [*module.named_parameters(), *module.named_buffers()]
        self._names = {tensor.untyped_storage()._cdata: name for name, tensor in tensors}
        self._parameters = {parameter.untyped_storage()._cdata for parameter in module.parameters()}
        # Storage ─► blocks that had begun when it was computed, of what depends on samples or parameters; storages
        # are held, so that no other gets the number.
        self._blocks_begun: dict[int, int] = {}
        self._held: list[Any] = []
        self._kept_by_model = [tensor.untyped_storage() for _, tensor in tensors]
        self.mark(inputs)

    def mark(self, tensor: Tensor) -> None:
        """Marks a tensor as computed before the next cut."""
        storage = tensor.untyped_storage()
        self._blocks_begun[storage._cdata] = self._trial.begun
        self._held.append(storage)

    def depends(self, value: Any) -> bool:
        """Whether any part of the value was computed from samples or parameters."""
        return any(tensor.untyped_storage()._cdata in self._blocks_begun for tensor in _tensors(value))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        trial, kwargs = self._trial, kwargs or {}
        result = func(*args, **kwargs)
        if func.overloadpacket.__name__ in _SHAPE_ONLY:
            return result
        storages = [tensor.untyped_storage()._cdata for tensor in _tensors((args, kwargs))]
        for storage in storages:
            if storage in self._names:
                trial.used.setdefault(self._names[storage], set()).add(trial.begun)
            if self._blocks_begun.get(storage, trial.begun) < trial.begun:
                raise CannotCutError(f"what is computed before {trial.names[-1]} is used again behind it")
        if any(storage in self._blocks_begun or storage in self._parameters for storage in storages):
            self._mark_results(result)
        return result

    def _mark_results(self, result: Any) -> None:
        tensors = _tensors(result)
        if not tensors and not self._trial.inside:
            raise CannotCutError("its code looks at the numbers in its inputs outside of the blocks")
        for tensor in tensors:
            # A view of a parameter is the parameter.
            if tensor.untyped_storage()._cdata not in self._names:
                self.mark(tensor)


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def follow(module: nn.Module, blocks: Blocks, inputs: Tensor) -> Chain:
    """Sends samples through the whole model, in evaluation mode; raises `CannotCutError`."""
    trial, counter = _Trial(), FlopCounterMode(display=False)
    follower = _Follower(trial, module, inputs)
    with _hooked(module, blocks, trial, follower, counter), torch.no_grad(), counter, follower:
        output = module(inputs)
    if not isinstance(output, Tensor):
        raise CannotCutError(f"it returns {type(output).__name__} and not one tensor")
    if len(trial.names) != len(blocks.modules):
        raise CannotCutError(f"only {len(trial.names)} of its {len(blocks.modules)} blocks run")
    ends = [*trial.flops[1:], float(counter.get_total_flops())]
    starts = [0.0, *trial.flops[1:]]
    flops = tuple(end - start for start, end in zip(starts, ends, strict=True))
    positions, tied = _positions(module, trial)
    return Chain(tuple(trial.names), flops, tuple(trial.extras), positions, tied, trial.outputs, len(inputs))


def _positions(module: nn.Module, trial: _Trial) -> tuple[dict[str, int], frozenset[str]]:
    """Where each tensor outside the blocks is first used, and which are used again after all blocks.

    In any other two places no parameter may be used.
    """
    # A buffer that only training uses belongs where the rest of its layer is used.
    used_by = {name.rpartition(".")[0]: max(places) for name, places in trial.used.items()}
    positions = {
        name: max(trial.used.get(name, {used_by.get(name.rpartition(".")[0], 0)})) for name, _ in module.named_buffers()
    }
    tied = frozenset(name for name, places in trial.used.items() if places == {0, len(trial.names)})
    block_of = {
        f"{block}.{name}": number
        for number, block in enumerate(trial.names)
        for name, _ in module.get_submodule(block).named_parameters()
    }
    for name, _ in module.named_parameters():
        places = trial.used.get(name, set())
        if not places and name not in block_of:
            raise CannotCutError(f"{name} is not used in a trial, so that nobody knows which stage needs it")
        once = block_of[name] + 1 if name in block_of else min(places)
        if places - {once} and (name in block_of or name not in tied):
            raise CannotCutError(f"{name} is used in several places of it; give each a parameter of its own")
        positions[name] = min(places, default=0)
    inside = tuple(f"{block}." for block in trial.names)
    outside = {name: place for name, place in positions.items() if not name.startswith(inside)}
    return outside, tied - {name for name, _ in module.named_buffers()}


@contextmanager
def _hooked(
    module: nn.Module, blocks: Blocks, trial: _Trial, follower: _Follower, counter: FlopCounterMode
) -> Iterator[None]:
    hooks: list[Any] = []
    inside = {id(child) for block in blocks.modules.values() for child in block.modules()}
    for name, block in blocks.modules.items():
        hooks.append(block.register_forward_pre_hook(_entering(name, trial, follower, counter), with_kwargs=True))
        hooks.append(block.register_forward_hook(_leaving(name, trial)))
    for name, child in module.named_modules():
        is_layer = not list(child.children()) and list(child.parameters(recurse=False))
        if is_layer and id(child) not in inside:
            hooks.append(child.register_forward_hook(_keeping_output(name, trial)))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _entering(name: str, trial: _Trial, follower: _Follower, counter: FlopCounterMode) -> Callable[..., None]:
    def hook(_block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hidden = first_argument(args, kwargs)
        if trial.inside or name in trial.names:
            raise CannotCutError(f"{name} runs more than once, or within another block")
        if not isinstance(hidden, Tensor) or not hidden.is_floating_point():
            raise CannotCutError(f"the first input of {name} is no tensor of activations")
        if trial.output is not None and hidden is not trial.output:
            raise CannotCutError(f"something happens between {trial.names[-1]} and {name}")
        if follower.depends((*args, *kwargs.values())[1:]):
            raise CannotCutError(f"{name} takes a second input that depends on the samples or on parameters")
        trial.names.append(name)
        trial.flops.append(float(counter.get_total_flops()))
        trial.begun, trial.inside, trial.hidden = trial.begun + 1, True, hidden
        follower.mark(hidden)

    return hook


def _leaving(name: str, trial: _Trial) -> Callable[..., None]:
    def hook(_block: nn.Module, _args: Any, output: Any) -> None:
        first, extras = (output[0], tuple(output[1:])) if isinstance(output, tuple) else (output, None)
        assert trial.hidden is not None
        if not isinstance(first, Tensor) or first.shape != trial.hidden.shape or _tensors(extras):
            raise CannotCutError(f"{name} does not give back one tensor of the shape of its first input")
        trial.extras.append(extras)
        trial.inside, trial.output = False, first

    return hook


def _keeping_output(name: str, trial: _Trial) -> Callable[..., None]:
    def hook(_layer: nn.Module, _args: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            trial.outputs[name] = LayerOutput(output.shape, output.dtype, trial.begun)

    return hook
