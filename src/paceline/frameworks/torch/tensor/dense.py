"""Dense layers as they are split, by columns or by rows."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from paceline.frameworks.torch.module_facts import is_transposed

STYLES = {"columns": ColwiseParallel, "rows": RowwiseParallel}


def output_dimension(layer: nn.Module, parameter: Tensor) -> int:
    """The dimension of a parameter that runs over the layer's outputs."""
    return 1 if is_transposed(layer) and parameter.ndim > 1 else 0


def split_dense(module: nn.Module, mesh: DeviceMesh, plan: dict[str, str]) -> None:
    """Splits dense layers in place, each by columns or by rows."""
    layers = {name: module.get_submodule(name) for name in plan}
    usual = {name: STYLES[plan[name]]() for name, layer in layers.items() if not is_transposed(layer)}
    parallelize_module(module, mesh, usual)
    for name, layer in layers.items():
        if is_transposed(layer):
            _split_transposed(layer, mesh, plan[name])


def _split_transposed(layer: nn.Module, mesh: DeviceMesh, part: str) -> None:
    by_columns = part == "columns"
    arriving, leaving = (Replicate(), Shard(-1)) if by_columns else (Shard(-1), Replicate())

    def partition(_name: str, split: nn.Module, over: DeviceMesh) -> None:
        for name, parameter in list(split.named_parameters(recurse=False)):
            is_kernel = parameter.ndim > 1
            place = Shard(1 if is_kernel else 0) if by_columns else Shard(0) if is_kernel else Replicate()
            spread = distribute_tensor(parameter.data, over, [place])
            split.register_parameter(name, nn.Parameter(spread, requires_grad=parameter.requires_grad))

    def take(_layer: nn.Module, inputs: tuple[Any, ...], over: DeviceMesh) -> DTensor:
        return DTensor.from_local(inputs[0], over, [arriving], run_check=False)

    def give(_layer: nn.Module, output: DTensor, _over: DeviceMesh) -> Tensor:
        whole: Tensor = output.redistribute(placements=[leaving]).to_local()
        return whole

    distribute_module(layer, mesh, partition, take, give)


def keep_columns(layer: nn.Module, rank: int, ways: int, parts: int) -> None:
    """Replaces a layer by one worker's part by columns, without communication."""
    for name, parameter in list(layer.named_parameters(recurse=False)):
        dimension = output_dimension(layer, parameter)
        order = side_by_side(parameter.shape[dimension], parts, ways).to(parameter.device)
        part = parameter.detach().index_select(dimension, order).chunk(ways, dimension)[rank]
        layer.register_parameter(name, nn.Parameter(part.clone()))
    if is_transposed(layer):
        layer.nf = int(layer.nf) // ways


def side_by_side(size: int, parts: int, ways: int) -> Tensor:
    """The order in which a worker's share of each part is contiguous."""
    return torch.arange(size).view(parts, ways, -1).transpose(0, 1).reshape(-1)
