"""A PyTorch model split over workers: dense layers and attention by `DTensor`, convolutions by hand.

`DTensor` cannot split a convolution (PyTorch 2.13), so each worker holds a smaller one. Arrays whose parts are not
contiguous are rearranged first, and put back in order when the weights are read out.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from paceline.contract.context import Context
from paceline.costs.splits import Split, split_layers
from paceline.frameworks.torch.layers import parameter_name
from paceline.frameworks.torch.precision import cast_inputs, half_of
from paceline.workloads.base import model_facts, named_layers
from paceline.workloads.layers import QUERY_KEY_VALUE, Flatten, Layer

CHANNEL_DIMENSION = 1
# The dimension of the mesh whose ranks each have a part of every layer.
TENSOR = "tensor"


@dataclass
class Arrangement:
    """How to restore the original order of parameters when weights are read, by name."""

    # Put together along this dimension.
    by_hand: dict[str, int] = field(default_factory=dict)
    # Put back in order along this dimension.
    reordered: dict[str, tuple[int, Tensor]] = field(default_factory=dict)

    def whole(self, state: Mapping[str, Tensor], group: dist.ProcessGroup) -> dict[str, Tensor]:
        """The tensors of the whole model; every worker of the group must call it."""
        tensors = {}
        for name, tensor in state.items():
            full: Tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor.detach()
            if name in self.by_hand:
                parts = [torch.empty_like(full.contiguous()) for _ in range(group.size())]
                dist.all_gather(parts, full.contiguous(), group=group)
                full = torch.cat(parts, self.by_hand[name])
            if name in self.reordered:
                dimension, order = self.reordered[name]
                full = full.index_select(dimension, order.argsort().to(full.device))
            tensors[name] = full
        return tensors


def drift(parameters: Mapping[str, Tensor], arrangement: Arrangement, group: dist.ProcessGroup) -> float:
    """The largest difference between copies that should be equal on all workers; anything above zero is a bug."""
    whole = [
        (parameter.to_local() if isinstance(parameter, DTensor) else parameter).detach().reshape(-1)
        for name, parameter in parameters.items()
        if _replicated(name, parameter, arrangement)
    ]
    if not whole:
        return 0.0
    largest = torch.cat(whole)
    smallest = largest.clone()
    dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
    dist.all_reduce(smallest, dist.ReduceOp.MIN, group=group)
    return float((largest - smallest).max())


def _replicated(name: str, parameter: Tensor, arrangement: Arrangement) -> bool:
    names = parameter.device_mesh.mesh_dim_names if isinstance(parameter, DTensor) else ()
    if TENSOR in names:
        return bool(parameter.placements[names.index(TENSOR)].is_replicate())
    return name not in arrangement.by_hand


def split_built_in(context: Context, module: nn.Sequential, mesh: DeviceMesh, split_convolutions: bool) -> Arrangement:
    """Splits the module in place, as its layers declare that they can be split."""
    layers, shape, ways = context.model.layers, context.data.input_shape, mesh.size()
    splits = split_layers(model_facts(layers, shape), ways, split_convolutions)
    arrangement, plan = Arrangement(), dict[str, Any]()
    images_last = context.spec.memory_format == "channels_last"
    for (name, layer, _), split in zip(named_layers(layers, shape), splits, strict=True):
        by_channels = split.part == "channels"
        if by_channels:
            _split_convolution(arrangement, module.get_submodule(name), name, mesh)
        else:
            plan |= _styles(arrangement, module, layer, split, ways)
        if split.gathers_input or (by_channels and split.sends_back):
            hook = _input_hook(mesh, split.takes_split, by_channels, images_last)
            module.get_submodule(name).register_forward_pre_hook(hook)
    if images_last:
        _reorder_flattened(context, arrangement, module, splits, ways)
    parallelize_module(module, mesh, plan)
    send_in_half(context, module, [name for name, style in plan.items() if isinstance(style, ColwiseParallel)])
    return arrangement


def send_in_half(context: Context, module: nn.Module, columns: Iterable[str]) -> None:
    """Casts what layers split by columns are given before it is spread, so that their gradients are sent so too."""
    half = half_of(context.spec)
    if half is None:
        return
    cast, device = cast_inputs(half), "cpu" if context.spec.device == "cpu" else "cuda"

    def under_autocast(layer: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        # Evaluation is in single precision.
        return cast(layer, inputs) if torch.is_autocast_enabled(device) else inputs

    for name in columns:
        module.get_submodule(name).register_forward_pre_hook(under_autocast, prepend=True)


def _styles(
    arrangement: Arrangement, module: nn.Sequential, layer: Layer, split: Split, ways: int
) -> dict[str, ColwiseParallel | RowwiseParallel]:
    """How `DTensor` is to divide each dense module of a layer; a worker's heads are put side by side first."""
    styles: dict[str, ColwiseParallel | RowwiseParallel] = {}
    for array, _ in split.layer.arrays:
        how, parameter = split.array_split(array), f"{split.layer.name}.{parameter_name(layer, array)}"
        owner = parameter.rpartition(".")[0]
        if how == "rows":
            styles[owner] = RowwiseParallel()
        elif how != "whole":
            styles[owner] = ColwiseParallel(output_layouts=Replicate() if split.gathers_output else None)
        if how == "heads":
            # From all queries, all keys, all values to each worker's queries, keys and values.
            size = len(module.get_parameter(parameter))
            order = torch.arange(size).view(QUERY_KEY_VALUE, ways, -1).transpose(0, 1).reshape(-1)
            reorder(arrangement, module, parameter, 0, order)
    if split.part == "heads":
        block: Any = module.get_submodule(split.layer.name)
        # Others count the heads of what they are given.
        if hasattr(block, "heads"):
            block.heads //= ways
    return styles


def _reorder_flattened(
    context: Context, arrangement: Arrangement, module: nn.Module, splits: tuple[Split, ...], ways: int
) -> None:
    """A split image flattened with channels fastest: a worker's inputs are spread over all rows of the next kernel."""
    channels: int | None = None
    steps = named_layers(context.model.layers, context.data.input_shape)
    for (name, layer, input_shape), split in zip(steps, splits, strict=True):
        if isinstance(layer, Flatten) and split.takes_split:
            channels = input_shape[0]
        elif split.part == "rows" and channels is not None:
            order = torch.arange(split.input_elements).view(-1, ways, channels // ways).transpose(0, 1).reshape(-1)
            reorder(arrangement, module, f"{name}.weight", 1, order)
            channels = None


def reorder(arrangement: Arrangement, module: nn.Module, name: str, dimension: int, order: Tensor) -> None:
    """Puts an array in another order along a dimension, and notes it."""
    parameter = module.get_parameter(name)
    with torch.no_grad():
        parameter.copy_(parameter.index_select(dimension, order.to(parameter.device)))
    arrangement.reordered[name] = (dimension, order)


def never_in_place(module: nn.Module) -> None:
    """A split layer gives a view, and PyTorch forbids to change it in place; the result is the same without."""
    for child in module.modules():
        if getattr(child, "inplace", False):
            child.inplace = False


def _split_convolution(arrangement: Arrangement, layer: nn.Module, name: str, mesh: DeviceMesh) -> None:
    """Keeps a worker's output channels, as a smaller convolution."""
    assert isinstance(layer, nn.Conv2d)
    weight, bias = (
        parameter.detach().chunk(mesh.size())[mesh.get_local_rank()].clone(memory_format=torch.preserve_format)
        for parameter in (layer.weight, layer.bias)
    )
    layer.out_channels = len(weight)
    layer.weight, layer.bias = nn.Parameter(weight), nn.Parameter(bias)
    arrangement.by_hand |= {f"{name}.weight": 0, f"{name}.bias": 0}


def _input_hook(
    mesh: DeviceMesh, gathers: bool, divided: bool, channels_last: bool
) -> Callable[[nn.Module, tuple[Tensor]], Tensor]:
    """Puts the channels of a layer's input together; its gradient is a part of a sum if the layer is divided."""
    arriving = Shard(3 if channels_last else CHANNEL_DIMENSION) if gathers else Replicate()
    gradient = Partial() if divided else Replicate()

    def prepare(_layer: nn.Module, inputs: tuple[Tensor]) -> Tensor:
        # Channels that are fastest in memory stay so: no copy beside the exchange itself.
        image = inputs[0].permute(0, 2, 3, 1) if channels_last else inputs[0]
        spread = DTensor.from_local(image.contiguous(), mesh, [arriving], run_check=False)
        whole: Tensor = spread.redistribute(placements=[Replicate()]).to_local(grad_placements=[gradient])
        return whole.permute(0, 3, 1, 2) if channels_last else whole

    return prepare
