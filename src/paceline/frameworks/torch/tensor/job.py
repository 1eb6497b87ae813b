"""Training a model whose layers are split over the workers of a row; rows, if there are several, are replicas."""

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from paceline.contract.context import Context
from paceline.contract.job import Evaluation
from paceline.costs.splits import Rows
from paceline.errors import ModelError
from paceline.frameworks.torch.compression import make_contiguous
from paceline.frameworks.torch.group import join_group
from paceline.frameworks.torch.precision import compute_in_half
from paceline.frameworks.torch.sharded import ShardedJob, layers, sharding_policies
from paceline.frameworks.torch.tensor.plan import split_own
from paceline.frameworks.torch.tensor.split import Arrangement, drift, never_in_place, split_built_in
from paceline.frameworks.torch.training import TorchJob, build, export_weights, optimizer_for, torch_device
from paceline.frameworks.torch.worker_grid import DATA, MODEL, GradientAverage, WorkerGrid, arrange_workers
from paceline.workloads.base import Weights


@dataclass(frozen=True)
class SplitModel:
    """A worker's part of every layer, where the other parts are, and how to put them together."""

    module: nn.Module
    grid: WorkerGrid
    mesh: DeviceMesh
    device: torch.device
    arrangement: Arrangement


def split_model(context: Context, rows: Rows) -> SplitModel:
    """Joins the other processes, builds the model and keeps this worker's part of each layer."""
    device = torch_device(context)
    join_group(context)
    grid = arrange_workers(context, rows.ways)
    module, mesh = build(context, device), grid.mesh(device)
    never_in_place(module)
    if context.model.own is not None:
        arrangement = split_own(context, module, mesh[MODEL])
        compute_in_half(context.spec, module)
        return SplitModel(module, grid, mesh, device, arrangement)
    assert isinstance(module, nn.Sequential)
    arrangement = split_built_in(context, module, mesh[MODEL], rows.split_convolutions)
    compute_in_half(context.spec, module)
    return SplitModel(module, grid, mesh, device, arrangement)


def shard_rows(context: Context, split: SplitModel) -> None:
    """Divides what a worker has of each layer over the rows, in place."""
    make_contiguous(split.module)
    # It warns of changing the views that split layers give in place, which was ruled out when the model was split.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module", UserWarning)
    for unit in (*layers(split.module), split.module):
        policies = sharding_policies(context.spec, gives_results=unit is split.module)
        fully_shard(unit, mesh=split.mesh[DATA], reshard_after_forward=True, **policies)


class TensorJob(TorchJob):
    """Every worker of a row sees the same batch and knows the same loss."""

    has_parts = True

    def __init__(self, context: Context, split: SplitModel, average: GradientAverage | None = None) -> None:
        optimizer = optimizer_for(context, split.module)
        if isinstance(optimizer, torch.optim.LBFGS):
            raise ModelError("L-BFGS needs all parameters in one place; use another optimizer, or torch-single")
        group_by_mesh(optimizer)
        super().__init__(context, split.module, split.device, optimizer, share=(split.grid.row, split.grid.rows))
        self._split, self._average = split, average

    def _backward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        loss = super()._backward(inputs, targets)
        if self._average is not None:
            self._average.finish()
        return loss

    def evaluate(self) -> Evaluation | None:  # type: ignore[override]  # `Job` allows None
        """The row's part of the test set; one worker of the row reports it."""
        evaluation = super().evaluate()
        return evaluation if self._split.grid.position == 0 else None

    def weights(self) -> Weights:
        """All weights, put together from the workers of the row."""
        whole = self._split.arrangement.whole(self._module.state_dict(), self._split.grid.row_group)
        return export_weights(self._context, whole)

    def details(self) -> dict[str, Any]:
        """Adds how far the workers' copies of unsplit parameters have drifted apart, which must be zero."""
        apart = drift(dict(self._module.named_parameters()), self._split.arrangement, self._split.grid.row_group)
        return {**super().details(), "replicated_drift": apart}

    def close(self) -> None:
        """What knows the groups goes before them."""
        del self._average, self._split
        super().close()


class ShardedTensorJob(TensorJob, ShardedJob):  # type: ignore[misc]  # `Job` allows None
    """The same where each worker's parts are divided over the rows."""


def group_by_mesh(optimizer: torch.optim.Optimizer) -> None:
    """Fused updates take plain tensors or tensors on one mesh, not both at once."""
    optimizer.param_groups = [
        {**group, "params": part} for group in optimizer.param_groups for part in parameters_by_mesh(group["params"])
    ]


def parameters_by_mesh(parameters: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Parameters of each mesh, and plain ones."""
    parts: dict[Any, list[nn.Parameter]] = {}
    for parameter in parameters:
        parts.setdefault(getattr(parameter, "device_mesh", None), []).append(parameter)
    return list(parts.values())
