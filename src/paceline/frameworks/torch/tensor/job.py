"""Training a model whose layers are split over all workers."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from paceline.contract.context import Context
from paceline.contract.job import Evaluation
from paceline.errors import ModelError
from paceline.frameworks.torch.checkpoint import TorchCheckpoint
from paceline.frameworks.torch.group import join_group
from paceline.frameworks.torch.precision import compute_in_half
from paceline.frameworks.torch.tensor.plan import split_user_model
from paceline.frameworks.torch.tensor.split import TENSOR, Arrangement, drift, never_in_place, split_built_in
from paceline.frameworks.torch.training import TorchJob, build, export_weights, optimizer_for, torch_device
from paceline.workloads.base import Weights


@dataclass(frozen=True)
class SplitModel:
    """A worker's part of every layer, where the other parts are, and how to put them together."""

    module: nn.Module
    mesh: DeviceMesh
    device: torch.device
    arrangement: Arrangement


def split_model(context: Context, split_convolutions: bool) -> SplitModel:
    """Joins the other processes, builds the model and keeps this worker's part of each layer."""
    device = torch_device(context)
    join_group(context)
    mesh = init_device_mesh(device.type, (context.spec.workers,), mesh_dim_names=(TENSOR,))
    module = build(context, device)
    never_in_place(module)
    if context.model.user_model is not None:
        arrangement = split_user_model(context, module, mesh)
    else:
        assert isinstance(module, nn.Sequential)
        arrangement = split_built_in(context, module, mesh, split_convolutions)
    compute_in_half(context.spec, module)
    return SplitModel(module, mesh, device, arrangement)


class TensorJob(TorchJob):
    """Every worker sees the same batch and knows the same loss."""

    has_parts = True

    def __init__(self, context: Context, split: SplitModel) -> None:
        optimizer = optimizer_for(context, split.module)
        if isinstance(optimizer, torch.optim.LBFGS):
            raise ModelError("L-BFGS needs all parameters in one place; use another optimizer, or torch-single")
        group_by_mesh(optimizer)
        super().__init__(context, split.module, split.device, optimizer, share=(0, 1))
        self._split = split

    def evaluate(self) -> Evaluation | None:  # type: ignore[override]  # `Job` allows None
        """One worker reports it for all."""
        evaluation = super().evaluate()
        return evaluation if self._split.mesh.get_rank() == 0 else None

    def weights(self) -> Weights:
        """All weights, put together from the workers."""
        whole = self._split.arrangement.whole(self._module.state_dict(), self._split.mesh.get_group())
        return export_weights(self._context, whole)

    def checkpoint(self) -> TorchCheckpoint:
        """The worker's part of every layer, and what is not split."""
        return self._checkpoint_of(self._module)

    def details(self) -> dict[str, Any]:
        """Adds how far the workers' copies of unsplit parameters have drifted apart, which must be zero."""
        apart = drift(dict(self._module.named_parameters()), self._split.arrangement, self._split.mesh.get_group())
        return {**super().details(), "replicated_drift": apart}

    def close(self) -> None:
        """What knows the groups goes before them."""
        del self._split
        super().close()


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
