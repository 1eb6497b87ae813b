"""Facts of each layer of a user's PyTorch module: parameters, operations, what its backward pass keeps.

It runs on the meta device, so that it can be of any size; one whose code looks at numbers runs with real samples.
"""

import copy
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from paceline.costs.footprint import FLOAT_BYTES
from paceline.costs.layers import PAIRED_SPLITS, Arrays, LayerFacts, LayerKind
from paceline.data.tree import Tree, call, leaves, length, map_tree
from paceline.frameworks.torch.trace.build import without_numbers

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def is_dense(layer: nn.Module) -> bool:
    """Whether the layer is an `nn.Linear` or a `Conv1D`."""
    return isinstance(layer, nn.Linear) or is_transposed(layer)


def is_transposed(layer: nn.Module) -> bool:
    """Whether it is the `Conv1D` of Hugging Face, whose kernel has inputs before outputs."""
    weight = getattr(layer, "weight", None)
    return type(layer).__name__ == "Conv1D" and isinstance(getattr(layer, "nf", None), int) and weight is not None


class _Collector:
    """Collects after each layer of a forward pass what was computed and kept since the previous one."""

    def __init__(self, samples: int, uncounted: list[Tensor]) -> None:
        self.layers: list[LayerFacts] = []
        self._samples, self._flops, self._kept_bytes = samples, 0, 0
        # Storages that were counted or do not count, by number; held, so that no other storage gets the number.
        self._storages: dict[int, Any] = {}
        self._storages |= {tensor.untyped_storage()._cdata: tensor.untyped_storage() for tensor in uncounted}
        self._layer_names: set[str] = set()
        # Parameters that were counted, by number: one that modules share counts once.
        self._counted: set[int] = set()
        self.counter = FlopCounterMode(display=False)

    def add(self, name: str, module: nn.Module, output: Tensor) -> None:
        """Adds a module that has just run. One that runs again costs again, and brings no further parameters."""
        flops = self.counter.get_total_flops()
        is_new = name not in self._layer_names
        arrays, frozen = _arrays(module, self._counted) if is_new else ((), ())
        self._layer_names.add(name)
        self.layers.append(
            LayerFacts(
                name=name,
                parameters=sum(math.prod(shape) for _, shape in arrays),
                # The counter knows products and convolutions; anything else is about one operation per element.
                forward_flops=(flops - self._flops + output.numel()) // self._samples,
                output_elements=output.numel() // self._samples,
                tensors=len(arrays),
                arrays=arrays,
                frozen_arrays=frozen,
                kept_elements=self._kept_bytes // FLOAT_BYTES // self._samples,
                kind=_kind(module) if is_new and next(module.parameters(recurse=False), None) is not None else "shape",
            )
        )
        self._flops, self._kept_bytes = flops, 0

    def add_unseen(self, whole: nn.Module) -> None:
        """Adds parameters of modules that did not run themselves to the layer around them that used them.

        Attention of PyTorch computes with the weights of its last product, and never calls that.
        """
        for name, child in whole.named_modules():
            outer = [layer for layer in self.layers if name.startswith(f"{layer.name}.")]
            if not outer or name in self._layer_names:
                continue
            around = max(outer, key=lambda layer: len(layer.name))
            arrays, frozen = _arrays(child, self._counted)
            own_name = name.removeprefix(f"{around.name}.")
            self.layers[self.layers.index(around)] = replace(
                around,
                parameters=around.parameters + sum(math.prod(shape) for _, shape in arrays),
                tensors=around.tensors + len(arrays),
                arrays=(*around.arrays, *((f"{own_name}.{array}", shape) for array, shape in arrays)),
                frozen_arrays=(*around.frozen_arrays, *((f"{own_name}.{array}", shape) for array, shape in frozen)),
            )

    def keep(self, tensor: Tensor) -> Tensor:
        """Counts a tensor that autograd keeps for the backward pass."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self._storages:
            self._storages[storage._cdata] = storage
            self._kept_bytes += storage.nbytes()
        return tensor


def module_facts(module: nn.Module, inputs: Tree) -> tuple[LayerFacts, ...]:
    """Facts of the module's layers, in the order of a forward pass."""
    try:
        return _run(without_numbers(copy.deepcopy(module)), map_tree(lambda tensor: tensor.to("meta"), inputs))
    except Exception:  # what a model of the user's raises on tensors without numbers can be anything
        return _run(module, inputs)


def split_as(layers: tuple[LayerFacts, ...], styles: Mapping[str, str]) -> tuple[LayerFacts, ...]:
    """The same layers, of which only those named can be split, each by columns or by rows."""
    return tuple(replace(layer, splits=PAIRED_SPLITS.get(styles.get(layer.name, "whole"), {})) for layer in layers)


def _run(module: nn.Module, inputs: Tree) -> tuple[LayerFacts, ...]:
    collector, hooks = _Collector(length(inputs), [*leaves(inputs), *module.parameters()]), []
    for name, child in module.named_modules():
        if not list(child.children()) or list(child.parameters(recurse=False)):

            def hook(layer: nn.Module, _inputs: Any, output: Any, name: str = name) -> None:
                first = output[0] if isinstance(output, tuple) else output
                if isinstance(first, Tensor):
                    collector.add(name or "model", layer, first)

            hooks.append(child.register_forward_hook(hook))
    try:
        with torch.autograd.graph.saved_tensors_hooks(collector.keep, lambda tensor: tensor), collector.counter:
            call(module, inputs)
    finally:
        for hook_handle in hooks:
            hook_handle.remove()
    collector.add_unseen(module)
    return tuple(collector.layers)


def _kind(module: nn.Module) -> LayerKind:
    if is_dense(module):
        return "dense"
    return "convolution" if isinstance(module, nn.modules.conv._ConvNd) else "other"


def _arrays(module: nn.Module, counted: set[int]) -> tuple[Arrays, Arrays]:
    """Arrays that are trained and those that are not, in the neutral layout.

    Kernels of dense layers and convolutions have inputs before outputs there.
    """
    trained: list[tuple[str, tuple[int, ...]]] = []
    frozen: list[tuple[str, tuple[int, ...]]] = []
    for name, parameter in module.named_parameters(recurse=False):
        if id(parameter) in counted:
            continue
        counted.add(id(parameter))
        arrays, shape = trained if parameter.requires_grad else frozen, tuple(parameter.shape)
        if name == "weight" and is_dense(module):
            arrays.append(("kernel", shape if is_transposed(module) else (shape[1], shape[0])))
        elif name == "weight" and isinstance(module, CONVOLUTIONS):
            arrays.append(("kernel", (*shape[2:], shape[1], shape[0])))
        else:
            arrays.append((name, shape))
    return tuple(trained), tuple(frozen)
