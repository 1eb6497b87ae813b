"""A user's PyTorch module, layer by layer: parameters, operations, what its backward pass keeps; never typed by hand.

It is followed on the meta device, where tensors have shapes and no numbers, so that a model of any size can be looked
at; a model that needs numbers to find its way is followed with the samples themselves.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from paceline.costs.footprint import FLOAT_BYTES, LayerFacts

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class _Follower:
    """Notes, for each module without modules of its own, what happened since the one before it."""

    def __init__(self, samples: int, uncounted: list[Tensor]) -> None:
        self.layers: list[LayerFacts] = []
        self._samples, self._flops, self._kept_bytes = samples, 0, 0
        # Storages that were counted or do not count, by number; held, so that no other storage gets the number.
        self._storages: dict[int, Any] = {}
        self._storages |= {one.untyped_storage()._cdata: one.untyped_storage() for one in uncounted}
        self._named: set[str] = set()
        self.counter = FlopCounterMode(display=False)

    def note(self, name: str, module: nn.Module, output: Tensor) -> None:
        """A module that has just run. One that runs again costs again, and brings no further parameters."""
        flops = self.counter.get_total_flops()
        arrays = () if name in self._named else _arrays(module)
        self._named.add(name)
        parameters = sum(_size(shape) for _, shape in arrays)
        self.layers.append(
            LayerFacts(
                name=name,
                parameters=parameters,
                # The counter knows products and convolutions; anything else is about one operation per element.
                forward_flops=(flops - self._flops + output.numel()) // self._samples,
                output_elements=output.numel() // self._samples,
                tensors=len(arrays),
                arrays=arrays,
                kept_elements=self._kept_bytes // FLOAT_BYTES // self._samples,
            )
        )
        self._flops, self._kept_bytes = flops, 0

    def keep(self, tensor: Tensor) -> Tensor:
        """Autograd puts a tensor aside for the backward pass."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self._storages:
            self._storages[storage._cdata] = storage
            self._kept_bytes += storage.nbytes()
        return tensor


def follow(module: nn.Module, inputs: Tensor) -> tuple[LayerFacts, ...]:
    """Its layers in the order of a forward pass."""
    try:
        return _followed(copy.deepcopy(module).to("meta"), inputs.to("meta"))
    except Exception:  # what a model of the user's raises on tensors without numbers can be anything
        return _followed(module, inputs)


def _followed(module: nn.Module, inputs: Tensor) -> tuple[LayerFacts, ...]:
    follower, hooks = _Follower(len(inputs), [inputs, *module.parameters()]), []
    for name, child in module.named_modules():
        if not list(child.children()) or list(child.parameters(recurse=False)):

            def hook(done: nn.Module, _given: Any, output: Any, name: str = name) -> None:
                made = output[0] if isinstance(output, tuple) else output
                if isinstance(made, Tensor):
                    follower.note(name or "model", done, made)

            hooks.append(child.register_forward_hook(hook))
    try:
        with torch.autograd.graph.saved_tensors_hooks(follower.keep, lambda tensor: tensor), follower.counter:
            module(inputs)
    finally:
        for one in hooks:
            one.remove()
    return tuple(follower.layers)


def _arrays(module: nn.Module) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Trainable arrays in the neutral layout: kernels of dense layers and convolutions have inputs before outputs."""
    found = []
    for name, parameter in module.named_parameters(recurse=False):
        if not parameter.requires_grad:
            continue
        shape = tuple(parameter.shape)
        if name == "weight" and isinstance(module, nn.Linear):
            found.append(("kernel", (shape[1], shape[0])))
        elif name == "weight" and isinstance(module, CONVOLUTIONS):
            found.append(("kernel", (*shape[2:], shape[1], shape[0])))
        else:
            found.append((name, shape))
    return tuple(found)


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size
