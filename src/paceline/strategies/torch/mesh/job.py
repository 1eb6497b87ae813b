"""Training on a mesh of devices: passes of the schedule, gradients clipped over all of the mesh, one update."""

from contextlib import ExitStack
from logging import ERROR, getLogger
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from paceline.contract.context import Context
from paceline.contract.job import Evaluation
from paceline.costs.layouts import MeshPlan
from paceline.data.tree import map_tree
from paceline.frameworks.torch.checkpoint import TorchCheckpoint
from paceline.frameworks.torch.evaluation import loss_function
from paceline.frameworks.torch.group import join_group
from paceline.frameworks.torch.tensor.job import group_by_mesh, parameters_by_mesh
from paceline.frameworks.torch.training import (
    TorchJob,
    export_weights,
    optimizer_for,
    torch_device,
)
from paceline.strategies.torch.mesh.experts import whole_experts
from paceline.strategies.torch.mesh.passes import TrainPass, scheduled_pass, whole_pass
from paceline.strategies.torch.mesh.stages import RankStages, build_stages
from paceline.strategies.torch.mesh.tensor import (
    losses_split_over_vocabulary,
    split_loss,
    whole_channels,
    whole_logits,
    whole_rows,
)
from paceline.strategies.torch.mesh.tied import Tied, add_up, tied_parameters
from paceline.workloads.base import Weights


def open_mesh(context: Context, plan: MeshPlan, balance: str) -> "MeshJob":
    """Joins the others and keeps what falls to this rank."""
    # A norm over shards and parts takes two sums, of which PyTorch warns in every process.
    getLogger("torch.distributed.tensor._redistribute").setLevel(ERROR)
    device = torch_device(context)
    join_group(context, with_host=context.spec.offload)
    stages = build_stages(context, plan, device, balance)
    share = split_loss(loss_function(context), stages.parts_of_logits, context.data.classes or 0)
    # The mean over the global batch is the sum of what each pass of each data rank has of it.
    parts = plan.layout.data_ranks * plan.layout.context * plan.passes

    def scaled(mean: Tensor) -> Tensor:
        return mean / parts * stages.loss_factor

    make_pass = scheduled_pass if plan.layout.pipeline > 1 else whole_pass
    return MeshJob(context, stages, make_pass(context, stages, share, scaled))


class MeshJob(TorchJob):
    """Training as one rank of a mesh does it."""

    autocasts = False

    def __init__(self, context: Context, stages: RankStages, train: TrainPass) -> None:
        trains = any(parameter.requires_grad for parameter in stages.parameters())
        optimizer = optimizer_for(context, stages) if trains else None
        if optimizer is not None:
            group_by_mesh(optimizer)
        mesh, layout = stages.mesh, stages.plan.layout
        shard = mesh["shard"].get_local_rank() // layout.context
        data_rank = mesh["replicate"].get_local_rank() * layout.shard + shard
        super().__init__(
            context, stages, stages.device, optimizer, share=(data_rank, layout.data_ranks), compiled=False
        )
        self._stages, self._train, self._plan = stages, train, stages.plan
        self._scale = stages.scale
        # Of a built-in model, the table of tokens is on the first stage whether a head shares it or not.
        apart = layout.pipeline > 1 and (
            context.model.user_model is not None or any(layer.tied for layer in context.model.layers)
        )
        self._tied = tied_parameters(stages) if apart else Tied()
        self._contexts = ExitStack()
        self._contexts.enter_context(losses_split_over_vocabulary(stages.parts_of_logits))

    def step(self, first: int, count: int) -> None:
        """All passes of a step, then each rank updates what it holds."""
        for number in range(first, first + count):
            self._module.zero_grad(set_to_none=True)
            shares = [
                self._train_rows(rows, last=part == self._plan.accumulation)
                for part, rows in enumerate(self._order[number].chunk(self._plan.accumulation), 1)
            ]
            known = [share / self._stages.loss_factor for share in shares if share is not None]
            add_up(self._tied, mesh_group(self._stages), self._plan.holder(self._plan.stages - 1))
            # A rank without parameters is asked too.
            if self._scale is None or self._scale.unscale(self._stages.parameters()):
                self._make_step()
            if known:
                # A share of the global mean ─► the mean of this rank's samples, or of its stretch of them.
                layout = self._plan.layout
                self._keep(torch.stack(known).sum() * layout.data_ranks * layout.context)

    def _make_step(self) -> None:
        if self._context.spec.clip is not None:
            clip_over_mesh(self._stages, self._context.spec.clip, self._tied.last)
        if self._optimizer is not None:
            self._optimizer.step()

    def _train_rows(self, rows: Tensor, last: bool) -> Tensor | None:
        stretch = self._stages.groups.stretch
        batch = self._part_of_batch(rows, self._stages.takes_inputs, self._stages.gives_outputs)
        inputs, targets = (None if part is None else map_tree(stretch.of, part) for part in batch)
        return self._train(inputs, targets, last)

    def losses(self) -> list[float] | None:  # type: ignore[override]  # `Job` allows None
        """The losses, on the last stage only."""
        return super().losses() if self._stages.gives_outputs else None

    def evaluate(self) -> Evaluation | None:  # type: ignore[override]
        """The data rank's part of the test set, told by the first of the ranks that split its layers."""
        evaluation = self._evaluate(_Whole(self._stages, self._context))
        self._stages.reshard()
        first = self._stages.mesh["tensor"].get_local_rank() == self._stages.groups.stretch.index == 0
        tells = self._stages.gives_outputs and first
        return evaluation if tells else None

    def weights(self) -> Weights:
        """All shards, parts and stages put together where the weights are written."""
        tensors: dict[str, Tensor] = {}
        for stage in self._stages.held:
            state = stage.module.state_dict()
            for whole, name in stage.names.items():
                tensor = state[name].full_tensor() if hasattr(state[name], "full_tensor") else state[name]
                if ".experts." in name:
                    tensor = whole_experts(tensor, self._stages.groups.expert_group)
                tensor = whole_channels(name, tensor, stage.by_hand, self._stages.mesh.get_group("tensor"))
                tensors[whole] = whole_rows(name, tensor, stage.reordered).detach().cpu()
        if self._plan.layout.pipeline == 1:
            return export_weights(self._context, tensors)
        group = self._stages.mesh.get_group("pipeline")
        gathered: list[Any] | None = [None] * group.size() if self._stages.place == 0 else None
        dist.gather_object(tensors, gathered, group=group, group_dst=0)
        if gathered is None:
            return {}
        return export_weights(self._context, {name: tensor for part in gathered for name, tensor in part.items()})

    def checkpoint(self) -> TorchCheckpoint | None:
        """The shards and parts of this rank's stages; of several copies of the model, the first is saved."""
        first = self._stages.mesh["replicate"].get_local_rank() == 0
        return self._checkpoint_of(self._module) if first else None

    def details(self) -> dict[str, Any]:
        """With the rank's place in the mesh and its stages."""
        places = {
            name: self._stages.mesh[name].get_local_rank() for name in ("pipeline", "replicate", "shard", "tensor")
        }
        stretch = self._stages.groups.stretch
        places["context"] = stretch.index
        places["shard"] //= self._plan.layout.context
        attention = {"attention": "ring" if stretch.in_ring else "gathered"} if stretch.count > 1 else {}
        stages = [stage.index for stage in self._stages.held]
        return {**super().details(), "mesh": places, "stages": stages, **attention}

    def close(self) -> None:
        """Releases everything that refers to the groups before the groups."""
        self._contexts.close()
        del self._train, self._stages, self._tied
        super().close()


class _Whole(nn.Module):
    """The whole model for evaluation, with unsplit logits."""

    def __init__(self, stages: RankStages, context: Context) -> None:
        super().__init__()
        self._stages, self._vocabulary = stages, context.data.classes or 0

    def forward(self, *inputs: Tensor, **named: Tensor) -> Any:
        """Outputs where the last stage is."""
        stretch = self._stages.groups.stretch
        outputs = self._stages(*map_tree(stretch.of, inputs), **map_tree(stretch.of, named))
        if outputs is None:
            return None
        return stretch.whole(whole_logits(outputs, self._stages.parts_of_logits, self._vocabulary))


def clip_over_mesh(stages: RankStages, most: float, counted_twice: list[Tensor]) -> None:
    """Clips gradients by their global norm: DTensors sum over shards and parts, this sums over stages and experts."""
    parameters = [parameter for parameter in stages.parameters() if parameter.grad is not None]
    squared = torch.zeros((), device=stages.device)
    experts = stages.groups.experts
    dealt = [parameter for parameter in parameters if experts is not None and _mesh_of(parameter) == experts]
    channels = stages.split_by_hand()
    apart = {id(parameter) for parameter in (*dealt, *channels, *counted_twice)}
    squared += _squared_norm([parameter for parameter in parameters if id(parameter) not in apart])
    if experts is not None:
        squared += _summed(_squared_norm(dealt), stages.device, experts.get_group("expert"))
    if channels:
        squared += _summed(_squared_norm(channels), stages.device, stages.mesh.get_group("tensor"))
    if stages.plan.layout.pipeline > 1:
        dist.all_reduce(squared, group=mesh_group(stages))
    norm = squared.sqrt()
    for group in parameters_by_mesh(parameters):
        clip_grads_with_norm_(group, most, norm)


def _summed(squared: Tensor | float, device: torch.device, group: dist.ProcessGroup) -> Tensor:
    """Over the ranks of a group, which have different parameters."""
    total = squared + torch.zeros((), device=device)
    if group.size() > 1:
        dist.all_reduce(total, group=group)
    return total


def _squared_norm(parameters: list[nn.Parameter]) -> Tensor | float:
    """The squared norm of parameters over all ranks of their meshes."""
    squared: Tensor | float = 0.0
    for group in parameters_by_mesh(parameters):
        norm = get_total_norm([parameter.grad for parameter in group if parameter.grad is not None])
        squared += (norm.full_tensor() if hasattr(norm, "full_tensor") else norm) ** 2
    return squared


def _mesh_of(parameter: Tensor) -> Any:
    mesh = getattr(parameter, "device_mesh", None)
    return None if mesh is None else mesh._get_root_mesh()


def mesh_group(stages: RankStages) -> dist.ProcessGroup:
    """The ranks of this rank's pipeline."""
    return stages.mesh.get_group("pipeline")
