"""Two whole steps of Paceline's own training loop on the meta device ─► operations and bytes of the second one."""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from paceline.contract.context import Context, Model, Process, Rendezvous
from paceline.contract.trace import Trace
from paceline.costs.operations import LayerOperations, StepOperations
from paceline.costs.step_memory import LayerMemory, StepMemory
from paceline.data.tree import Tree, leaves, take
from paceline.frameworks.torch.precision import compute_in_half
from paceline.frameworks.torch.recompute import recompute
from paceline.frameworks.torch.resident_data import ResidentData
from paceline.frameworks.torch.trace.build import META, build_on_meta, layers_of, resident_on_meta
from paceline.frameworks.torch.trace.cuda_on_meta import cuda_on_meta, next_node_number
from paceline.frameworks.torch.trace.recorder import BLOCK_BYTES, Moment, Phase, Recorder
from paceline.frameworks.torch.trace.scratch import Scratch
from paceline.frameworks.torch.training import TorchJob, optimizer_for
from paceline.spec import RunSpec
from paceline.systems.gpu_memory import GpuMemory
from paceline.workloads.base import Layers, named_layers
from paceline.workloads.layers import Layer, Shape

LOSS = "loss"
# Of like layers in a row, as many are traced.
ENOUGH_ALIKE = 3


class TracedJob(TorchJob):
    """The usual training loop on data without numbers, which says where in a step it is."""

    def __init__(self, recorder: Recorder, data: ResidentData, context: Context, module: nn.Module) -> None:
        self._recorder, self._meta_data = recorder, data
        super().__init__(context, module, META, optimizer_for(context, module), compiled=False)

    def _open_loaded(self) -> None:
        """Batches have the same form, wherever they come from."""

    def _resident_data(self) -> ResidentData:
        return self._meta_data

    @property
    def evaluation_samples(self) -> tuple[int, int]:
        """Samples in the largest batch of the evaluation, and in all of them."""
        total = self._meta_data.test_samples
        return math.ceil(total / math.ceil(total / self._meta_data.evaluation_batch)), total

    def evaluate_once(self) -> None:
        """One of those batches."""
        most, _ = self.evaluation_samples
        self._data = replace(self._meta_data, test=take(self._meta_data.test, slice(most)))
        self.evaluate()

    def _pass(self, inputs: Tree, targets: Tree, passes: int) -> Tensor:
        with self._recorder.during("forward"):
            return super()._pass(inputs, targets, passes)

    def _update(self, loss: Tensor) -> None:
        with self._recorder.during("update"):
            super()._update(loss)


def trace_step(spec: RunSpec, gpu: GpuMemory, keeps_calls: bool = False) -> Trace:
    """The trace of a run on one GPU; raises what the model raises where it cannot do without numbers."""
    context = Context(spec, Process(0, 1, "worker", 0, (0,)), Rendezvous("127.0.0.1", 0))
    whole, shape = layers_of(context)
    layers, places = shortened(whole)
    if context.user_model is None:
        # The context would load data to find out what the layers are.
        vars(context)["model"] = Model(layers)
    recorder = Recorder(Scratch(gpu), tf32=spec.precision != "fp32", keeps_calls=keeps_calls)
    with cuda_on_meta(gpu.half_attention, gpu.single_attention, gpu.fuses_recurrent), recorder:
        module = build_on_meta(context, layers, shape)
        data = resident_on_meta(context, shape)
        compute_in_half(spec, module)
        recompute(context, module)
        job = TracedJob(recorder, data, context, module)
        trace = _Tracing(recorder, module, job, layer_ends(module, layers, shape)).trace(spec, gpu, data)
    names = [name for name, _, _ in named_layers(whole, shape)]
    return trace.repeated(list(zip(names, places, strict=True))) if len(whole) > len(layers) else trace


def shortened(layers: Layers) -> tuple[Layers, list[int]]:
    """The layers with each run of equal ones cut to a few, and for every layer the index of an equal one."""
    few: list[Layer] = []
    places: list[int] = []
    for _, run in groupby(layers):
        count = len(list(run))
        kept = min(count, ENOUGH_ALIKE)
        # The first and the last have other neighbours than those between them.
        places += [len(few) + min(number, max(kept - 2, number + kept - count)) for number in range(count)]
        few += [layers[len(places) - 1]] * kept
    return tuple(few), places


def layer_ends(module: nn.Module, layers: Layers, shape: Shape) -> list[tuple[str, nn.Module]]:
    """For each layer by name, the module with which its part of the forward pass ends."""
    if not layers:
        return [
            (name or "model", child)
            for name, child in module.named_modules()
            if not list(child.children()) or list(child.parameters(recurse=False))
        ]
    names, ends = {name for name, _, _ in named_layers(layers, shape)}, dict[str, nn.Module]()
    current = ""
    for name, child in module.named_children():
        current = name if name in names else current
        ends[current] = child
    return list(ends.items())


class _Tracing:
    """Runs the steps with hooks on the layers, and puts the numbers together."""

    def __init__(
        self, recorder: Recorder, module: nn.Module, job: TracedJob, ends: list[tuple[str, nn.Module]]
    ) -> None:
        self._recorder, self._module, self._job = recorder, module, job
        self._names: list[str] = []
        for name, end in ends:
            end.register_forward_hook(self._ending(name))

    def _ending(self, name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            first = output[0] if isinstance(output, tuple) else output
            if self._recorder.phase == "forward" and isinstance(first, Tensor):
                self._names.append(name)
                self._recorder.end_layer(next_node_number())

        return hook

    def trace(self, spec: RunSpec, gpu: GpuMemory, data: ResidentData) -> Trace:
        """The second of two steps, and an evaluation."""
        recorder, job = self._recorder, self._job
        # Labels may be inputs and targets, and are there once.
        resident = list({id(tensor): tensor for tensor in leaves((data.train, data.test))}.values())
        for tensor in (*self._module.parameters(), *self._module.buffers(), *resident):
            recorder.add(tensor)
        rows = torch.empty(spec.samples_per_step, dtype=torch.int64, device=META)
        job.train_on(rows)
        gradients = _rounded(parameter.grad for parameter in self._module.parameters())
        static = recorder.live_bytes - gradients
        recorder.start_step()
        self._names = []
        loss = job.train_on(rows)
        gradients = _rounded(parameter.grad for parameter in self._module.parameters())
        with recorder.during("evaluation"):
            job.evaluate_once()
        del loss
        return Trace(self._operations(), self._memory(spec, gpu, static, gradients, resident))

    def _operations(self) -> StepOperations:
        moments = self._recorder.moments
        layers = tuple(
            LayerOperations(
                name, *(tuple(_moment(moments, phase, place).operations) for phase in ("forward", "backward"))
            )
            for place, name in enumerate((*self._names, LOSS))
        )
        return StepOperations(layers, tuple(_moment(moments, "update", 0).operations))

    def _memory(
        self, spec: RunSpec, gpu: GpuMemory, static: float, gradients: float, resident: list[Tensor]
    ) -> StepMemory:
        recorder, job = self._recorder, self._job
        owned = self._parameters_by_place()
        layers: list[LayerMemory] = []
        kept, left = 0.0, gradients
        for place, name in enumerate((*self._names, LOSS)):
            parameters = owned.get(place, [])
            layer_gradients = _rounded(parameter.grad for parameter in parameters)
            left -= layer_gradients
            forward, backward = (
                _moment(recorder.moments, phase, place).peak_bytes for phase in ("forward", "backward")
            )
            layers.append(
                LayerMemory(
                    name, _rounded(parameters), layer_gradients, recorder.kept.get(place, 0),
                    max(0.0, forward - static - kept), max(0.0, backward - static - kept - left),
                )
            )  # fmt: skip
            kept += recorder.kept.get(place, 0)
        held = sum(layer.parameter_bytes for layer in layers)
        state = _rounded(
            tensor for each in job.optimizer_state for tensor in each.values() if isinstance(tensor, Tensor)
        )
        data_bytes = _rounded(resident)
        products = [
            any(
                operation.kind == "product"
                for place in range(len(layers))
                for operation in _moment(recorder.moments, phase, place).operations
            )
            for phase in ("forward", "backward")
        ]
        evaluated, tested = job.evaluation_samples
        return StepMemory(
            samples=spec.samples_per_step, layers=tuple(layers),
            buffer_bytes=static - held - state - data_bytes, state_bytes=state, data_bytes=data_bytes,
            workspace_bytes=sum(products) * gpu.product_workspace_bytes,
            update_bytes=max(0.0, _moment(recorder.moments, "update", 0).peak_bytes - static - gradients),
            evaluation_bytes=max(0.0, _moment(recorder.moments, "evaluation", 0).peak_bytes - static - gradients),
            evaluation_samples=evaluated, test_samples=tested,
        )  # fmt: skip

    def _parameters_by_place(self) -> dict[int, list[nn.Parameter]]:
        """Parameters of each layer that ran; one that several share is the first one's."""
        places: dict[int, list[nn.Parameter]] = {}
        placed: set[int] = set()
        modules = dict(self._module.named_modules())
        for place, name in enumerate(self._names):
            owner = modules.get("" if name == "model" and "model" not in modules else name)
            for parameter in owner.parameters() if owner is not None else ():
                if id(parameter) not in placed:
                    placed.add(id(parameter))
                    places.setdefault(place, []).append(parameter)
        rest = [parameter for parameter in self._module.parameters() if id(parameter) not in placed]
        places.setdefault(0, []).extend(rest)
        return places


def _moment(moments: dict[tuple[Phase, int], Moment], phase: Phase, place: int) -> Moment:
    return moments.get((phase, place), Moment())


def _rounded(tensors: Any) -> float:
    """Bytes in the allocator's blocks; tensors that share a storage count once."""
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage() for tensor in tensors if tensor is not None}
    return float(sum(-(-storage.nbytes() // BLOCK_BYTES) * BLOCK_BYTES for storage in storages.values()))
