"""Follows every operation of a step: whose it is, what it asks for, and how many bytes are alive while it runs."""

import weakref
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from paceline.costs.operations import Operation
from paceline.frameworks.torch.trace.calls import text_of_call
from paceline.frameworks.torch.trace.cuda_on_meta import in_channels_last, in_rows, node_number, running_node
from paceline.frameworks.torch.trace.operations import GROUP_NORMS, as_called, operation_of, unseen_operations
from paceline.frameworks.torch.trace.scratch import Scratch
from paceline.frameworks.torch.trace.stand_ins import NONE, stand_in

# The CUDA allocator gives out multiples of this (c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize).
BLOCK_BYTES = 512
LAST_NODE = 2**64 - 1
# Kinds whose calls are not kept: gradients of attention and of recurrent layers need what their kernels left, and an
# update takes all arrays.
NOT_REPEATED = ("attention", "recurrent", "update")

Phase = Literal["setup", "forward", "backward", "update", "evaluation"]


@dataclass
class Moment:
    """What happened in one layer during one phase."""

    peak_bytes: float = 0
    operations: list[Operation] = field(default_factory=list)


@dataclass
class _Storage:
    nbytes: int
    phase: Phase
    place: int


class Recorder(TorchDispatchMode):
    """Counts live storages, and collects operations by phase and by layer in forward order."""

    def __init__(self, scratch: Scratch, tf32: bool, keeps_calls: bool = False) -> None:
        super().__init__()
        self._scratch, self._tf32, self._keeps_calls = scratch, tf32, keeps_calls
        self._storages: dict[int, _Storage] = {}
        self.live_bytes = 0
        self.phase: Phase = "setup"
        # The place of the layer that runs forward, and the numbers of graph nodes at which layers ended.
        self.place = 0
        self.node_ends: list[int] = []
        self.moments: dict[tuple[Phase, int], Moment] = {}
        # Bytes that each layer's forward pass has left when the backward pass begins, and then of gradients.
        self.kept: dict[int, int] = {}
        # Layers that are computed again just now, by their place, and none otherwise.
        self._backward_place = 0

    @contextmanager
    def during(self, phase: Phase) -> Iterator[None]:
        """A context in which all operations belong to that phase."""
        before, self.phase = self.phase, phase
        yield
        self.phase = before

    def start_step(self) -> None:
        """Forgets what happened before; what is alive stays."""
        self.moments, self.kept, self.node_ends, self.place = {}, {}, [], 0

    def end_layer(self, next_node: int) -> None:
        """The next operation of the forward pass is of another layer."""
        self.place += 1
        self.node_ends.append(next_node)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs one operation, and notes it."""
        kwargs = kwargs or {}
        name = func._schema.name
        if name == "aten::_local_scalar_dense":
            number = stand_in(name, args, kwargs)
            return func(*args) if number is NONE else number
        read = [value for value in tree_iter((args, kwargs)) if isinstance(value, Tensor)]
        for tensor in read:
            self.add(tensor)
        node = running_node()
        if node is not None and self.phase == "forward":
            self._turn_back()
        result = self._result(name, func, args, kwargs)
        outputs = [value for value in tree_iter(result) if isinstance(value, Tensor)]
        place = self._place_of(node)
        for tensor in outputs:
            self.add(tensor, place)
        phase = self.phase
        moment = self.moments.setdefault((phase, place), Moment())
        # What is computed again in a backward pass is computed as the first time, and for gradients too.
        backward = phase == "backward" and not torch.is_grad_enabled()
        operation = operation_of(func, args, read, outputs, backward, phase == "update", self._tf32)
        scratch_bytes = self._scratch.taken_by(operation, func, args, outputs) if operation is not None else 0
        moment.peak_bytes = max(moment.peak_bytes, self.live_bytes + scratch_bytes)
        if operation is not None:
            unseen = unseen_operations(name, args, outputs, backward)
            if self._keeps_calls and operation.kind not in NOT_REPEATED:
                call = text_of_call(func, args, kwargs, operation.numbers)
                operation = replace(operation, call=call)
                unseen = [replace(copy, call=call, inside_call=True) for copy in unseen]
            moment.operations += [*unseen, as_called(operation, kwargs)]
        return result

    @staticmethod
    def _result(name: str, func: Any, args: Any, kwargs: Any) -> Any:
        if name.startswith("aten::_fused_"):
            # Some fused updates have no kernel for tensors without numbers, and they make nothing.
            return None
        result = stand_in(name, args, kwargs)
        if result is not NONE:
            return result
        result = func(*args, **kwargs)
        if name in GROUP_NORMS:
            return in_rows(result)
        return in_channels_last(result, args) if "convolution" in name else result

    def add(self, tensor: Tensor, place: int | None = None) -> None:
        """Counts a tensor's storage from now until it is freed; without a place it was there before the step."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._storages:
            return
        nbytes = -(-storage.nbytes() // BLOCK_BYTES) * BLOCK_BYTES
        self._storages[key] = _Storage(nbytes, "setup" if place is None else self.phase, place or 0)
        self.live_bytes += nbytes
        weakref.finalize(storage, self._forget, key).atexit = False

    def _forget(self, key: int) -> None:
        self.live_bytes -= self._storages.pop(key).nbytes

    def left_by(self, phase: Phase) -> dict[int, int]:
        """Bytes still alive that were allocated in a phase, by layer."""
        left: dict[int, int] = {}
        for storage in self._storages.values():
            if storage.phase == phase:
                left[storage.place] = left.get(storage.place, 0) + storage.nbytes
        return left

    def _turn_back(self) -> None:
        self.phase = "backward"
        self.kept = self.left_by("forward")
        self._backward_place = self.place

    def _place_of(self, node: Any) -> int:
        """The layer that an operation belongs to; in a backward pass, the one that created the node."""
        if self.phase == "backward":
            # Nodes that add up a parameter's gradient have the highest of numbers, and no layer.
            number = LAST_NODE if node is None else node_number(node)
            if number < LAST_NODE:
                self._backward_place = bisect_right(self.node_ends, number)
            return self._backward_place
        return self.place if self.phase == "forward" else 0
