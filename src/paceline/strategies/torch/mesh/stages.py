"""A rank's stages of the model, split, recomputed, compiled and divided as the run says."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from paceline.contract.context import Context
from paceline.costs.layouts import SPLIT_BACKWARD, MeshPlan, is_causal_transformer
from paceline.costs.mesh_parts import copied_at_once, has_experts_apart
from paceline.costs.recompute import recomputes_around
from paceline.errors import ModelError
from paceline.frameworks.torch.blocks import compile_blocks
from paceline.frameworks.torch.gradients.compression import make_contiguous
from paceline.frameworks.torch.model import tie_heads
from paceline.frameworks.torch.pipeline.cut import Edge, Stage, StageModule, cut_model
from paceline.frameworks.torch.precision import LossScale, half_of, hold_in_half, loss_scale
from paceline.frameworks.torch.recompute import recompute
from paceline.frameworks.torch.segments import TRIAL_SAMPLES
from paceline.frameworks.torch.sharded import in_memory_of_its_own, layers, sharding_policies
from paceline.frameworks.torch.tensor.plan import split_user_model
from paceline.frameworks.torch.tensor.split import Arrangement, never_in_place, split_built_in
from paceline.frameworks.torch.training import build
from paceline.strategies.torch.mesh.context import Stretch, divide_sequences
from paceline.strategies.torch.mesh.experts import deal_experts
from paceline.strategies.torch.mesh.tensor import FEATURES, SEQUENCE, Reordered, split_transformer
from paceline.strategies.torch.mesh.tied import untie
from paceline.workloads.base import model_facts
from paceline.workloads.transformer_layers import MoeBlock

# Of the device mesh; `shard` has the ranks of `context` too, each of which holds a part of the same copy.
MESH = ("pipeline", "replicate", "shard", "tensor")


@dataclass(frozen=True)
class MeshStage:
    """One stage on this rank. The only stage of a layout without a pipeline is the whole model, and has no edges."""

    module: nn.Module
    index: int
    # Name in the whole model ─► name in the module.
    names: dict[str, str]
    reordered: Reordered
    input: Edge | None = None
    output: Edge | None = None
    # Parameters of convolutions of which this rank has some output channels ─► the dimension that runs over them.
    by_hand: dict[str, int] = field(default_factory=dict)


class RankStages(nn.Module):
    """All stages that a rank holds; called, it takes one batch through the whole pipeline."""

    def __init__(self, stages: Sequence[MeshStage], plan: MeshPlan, groups: "Groups", device: torch.device) -> None:
        super().__init__()
        self.held, self.plan, self.groups, self.device = stages, plan, groups, device
        self.mesh = mesh = groups.mesh
        self.modules_held = nn.ModuleList(stage.module for stage in stages)
        self.place = mesh["pipeline"].get_local_rank()
        self.takes_inputs = stages[0].index == 0
        self.gives_outputs = stages[-1].index == plan.stages - 1
        # Only causal transformers leave their outputs split.
        self.splits_logits = True
        self.scale: LossScale | None = None

    @property
    def parts_of_logits(self) -> DeviceMesh | None:
        """The ranks that each have a part of the logits; None where each has all of them."""
        return self.mesh["tensor"] if self.splits_logits and self.mesh["tensor"].size() > 1 else None

    @property
    def loss_factor(self) -> float:
        """What the loss is multiplied by."""
        return 1.0 if self.scale is None else self.scale.factor

    @property
    def stages(self) -> Sequence[MeshStage]:
        """The stages, for an instrumented run: each of their passes is recorded."""
        return self.held

    def forward(self, *inputs: Tensor, **named: Tensor) -> Any:
        """The outputs of the whole model where its last stage is, else nothing."""
        if self.plan.stages == 1:
            return self.held[0].module(*inputs, **named)
        (samples,) = inputs
        activations: Tensor = samples
        for stage in self.held:
            if stage.index:
                activations = self._received(stage, activations, len(samples))
            activations = stage.module(activations)
            if stage.index + 1 < self.plan.stages and self._holder(stage.index + 1) != self.place and len(activations):
                dist.send(activations.contiguous(), group=self._group, group_dst=self._holder(stage.index + 1))
        return activations if self.gives_outputs else None

    def _received(self, stage: MeshStage, before: Tensor, samples: int) -> Tensor:
        if self._holder(stage.index - 1) == self.place:
            return before
        assert stage.input is not None
        room = stage.input.empty(samples, self.device)
        if samples:
            dist.recv(room, group=self._group, group_src=self._holder(stage.index - 1))
        return room

    def _holder(self, stage: int) -> int:
        return self.plan.holder(stage)

    @property
    def _group(self) -> dist.ProcessGroup:
        return self.mesh.get_group("pipeline")

    def split_by_hand(self) -> list[nn.Parameter]:
        """Parameters that are split without DTensor."""
        return [stage.module.get_parameter(name) for stage in self.held for name in stage.by_hand]

    def reshard(self) -> None:
        """Shards the model again after a forward pass without a backward pass."""
        for module in self.modules():
            if isinstance(module, FSDPModule):
                module.reshard()


@dataclass(frozen=True)
class Groups:
    """The groups that a rank belongs to: the mesh, its part of sequences, and those that share experts with it."""

    mesh: DeviceMesh
    stretch: Stretch
    # The ranks that divide experts, in rows of those that deal them; None where experts are divided as all else is.
    experts: DeviceMesh | None

    @property
    def expert_group(self) -> dist.ProcessGroup | None:
        """The ranks that deal experts with this one."""
        return self.experts.get_group("expert") if self.experts is not None else None


def join_groups(plan: MeshPlan, device: torch.device, is_mixture: bool) -> Groups:
    """Makes the mesh and the groups beside it; every rank must."""
    layout = plan.layout
    sizes = (layout.pipeline, layout.replicate, layout.holders, layout.tensor)
    mesh = init_device_mesh(device.type, sizes, mesh_dim_names=MESH)
    stretch, experts = Stretch(0, 1), None
    if layout.context > 1:
        lines = torch.arange(layout.workers).view(-1, layout.context, layout.tensor).transpose(1, 2)
        group, _ = dist.new_subgroups_by_enumeration(lines.reshape(-1, layout.context).tolist())
        stretch = Stretch(group.rank(), layout.context, group, plan.in_ring)
    if is_mixture and has_experts_apart(layout):
        rows = (layout.pipeline, layout.replicate, layout.expert_holders, layout.expert)
        experts = init_device_mesh(device.type, rows, mesh_dim_names=("pipeline", "replicate", "shard", "expert"))
    return Groups(mesh, stretch, experts)


def build_stages(context: Context, plan: MeshPlan, device: torch.device, balance: str) -> RankStages:
    """Joins the mesh and keeps this rank's part: cut by stages, split, recomputed, and divided, in this order."""
    is_mixture = any(isinstance(layer, MoeBlock) for layer in context.model.layers)
    groups = join_groups(plan, device, is_mixture)
    cut = _held_stages(context, plan, groups.mesh, device, balance)
    held = RankStages([_divided(context, plan, groups, stage) for stage in cut], plan, groups, device)
    held.splits_logits = _divides_sequence(context)
    held.scale = loss_scale(context.spec, device, agree=True)
    return held


def _divides_sequence(context: Context) -> bool:
    """Whether `tensor` divides the sequence, and leaves the outputs split over the vocabulary."""
    built_in = context.model.user_model is None
    return built_in and is_causal_transformer(model_facts(context.model.layers, context.data.input_shape))


def _held_stages(
    context: Context, plan: MeshPlan, mesh: DeviceMesh, device: torch.device, balance: str
) -> list[MeshStage]:
    if plan.layout.pipeline == 1:
        module = build(context, device)
        return [MeshStage(module, 0, {name: name for name in module.state_dict()}, {})]
    stages = cut_model(context, plan.stages, balance, device, untie)
    return [_on_device(stages[index], device) for index in plan.held_stages(mesh["pipeline"].get_local_rank())]


def _on_device(stage: Stage, device: torch.device) -> MeshStage:
    return MeshStage(stage.module.to(device), stage.index, stage.names, {}, stage.input, stage.output)


def _divided(context: Context, plan: MeshPlan, groups: Groups, stage: MeshStage) -> MeshStage:
    """The stage split over `tensor` and divided over `shard`, with copies over `replicate`."""
    is_cut, last = isinstance(stage.module, StageModule), stage.index + 1 == plan.stages
    stage.module.gives_no_view = plan.schedule in SPLIT_BACKWARD
    arrangement = _split(context, plan, stage, groups)
    divide_sequences(stage.module, groups.stretch, context.data.input_shape[0])
    dealt = deal_experts(stage.module, groups.expert_group)
    around = recomputes_around(context.spec, plan.layout.tensor)
    if not around:
        recompute(context, stage.module)
    compile_blocks(context, stage.module, twice_back=plan.schedule in SPLIT_BACKWARD)
    if around:
        recompute(context, stage.module)
    _shard(context, plan, stage.module, groups, dealt, gives_results=last)
    prefix = "layers." if is_cut else ""
    edges = _local_edges(context, stage, plan, groups)
    return replace(
        stage,
        reordered={f"{prefix}{name}": order for name, order in arrangement.reordered.items()},
        by_hand=arrangement.by_hand,
        input=edges[0],
        output=edges[1],
    )


def _split(context: Context, plan: MeshPlan, stage: MeshStage, groups: Groups) -> Arrangement:
    """Splits the stage's layers: those of causal transformers with the sequence and the outputs, others without."""
    is_cut = isinstance(stage.module, StageModule)
    module = stage.module.layers if is_cut else stage.module
    assert isinstance(module, nn.Module)
    if _divides_sequence(context):
        hold_in_half(context.spec, stage.module)
        reordered = split_transformer(module, groups.mesh["tensor"], whole_positions=groups.stretch.count > 1)
        if not is_cut:
            tie_heads(module)
        return Arrangement(reordered=reordered)
    if context.model.user_model is None:
        hold_in_half(context.spec, stage.module)
        if plan.layout.tensor == 1:
            return Arrangement()
        never_in_place(module)
        assert isinstance(module, nn.Sequential)
        return split_built_in(context, module, groups.mesh["tensor"], plan.split_convolutions)
    inputs = None
    if stage.index:
        assert stage.input is not None and isinstance(stage.module, StageModule)
        noise = torch.randn((TRIAL_SAMPLES, *stage.input.shape), generator=torch.Generator().manual_seed(0))
        inputs = noise.to(next(module.parameters())).requires_grad_()
        inputs = inputs.permute(0, 3, 1, 2) if stage.module.unpack else inputs
    never_in_place(module)
    arrangement = split_user_model(context, module, groups.mesh["tensor"], inputs)
    # After it was compared with the whole model, which is in single precision.
    hold_in_half(context.spec, stage.module)
    return arrangement


def _local_edges(context: Context, stage: MeshStage, plan: MeshPlan, groups: Groups) -> tuple[Edge | None, Edge | None]:
    last = stage.index + 1 == plan.stages
    inputs, outputs = _in_half(context, stage.input, stage.index > 0), _in_half(context, stage.output, not last)
    if not _divides_sequence(context):
        # Other models have whole activations on every rank.
        return inputs, outputs
    return _local_edge(inputs, groups, SEQUENCE), _local_edge(outputs, groups, FEATURES if last else SEQUENCE)


def _in_half(context: Context, edge: Edge | None, crosses: bool) -> Edge | None:
    """The edge in half precision where it crosses a cut; samples and results keep their type."""
    half = half_of(context.spec)
    return edge if edge is None or half is None or not crosses else edge.in_type(half)


def _local_edge(edge: Edge | None, groups: Groups, dimension: int) -> Edge | None:
    """What crosses a cut on one rank: its stretch of the sequence, and of that its part of the split dimension.

    Samples themselves are whole on each of the ranks that split layers.
    """
    if edge is None or (groups.stretch.count == 1 and groups.mesh["tensor"].size() == 1):
        return edge
    part = groups.stretch.of(torch.empty(1, *edge.shape, dtype=edge.dtype, device="meta"))
    if edge.dtype.is_floating_point:
        part = part.chunk(groups.mesh["tensor"].size(), dimension)[groups.mesh["tensor"].get_local_rank()]
    return Edge(tuple(part.shape[1:]), edge.dtype)


def _shard(
    context: Context,
    plan: MeshPlan,
    module: nn.Module,
    groups: Groups,
    dealt: Sequence[nn.Module],
    gives_results: bool,
) -> None:
    """Divides layer by layer; gradients are summed, because each rank's loss is its share of the global mean."""
    scalar = next((name for name, parameter in module.named_parameters() if not parameter.ndim), None)
    if scalar is not None:
        raise ModelError(
            f"torch-mesh cannot divide {scalar} of {context.spec.workload}, which is a single number without a "
            f"dimension; make it an array of one, such as torch.zeros(1)"
        )
    make_contiguous(module)
    # Built-in models change nothing in place, so for them what this warns of cannot happen.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    apart = [(unit, _data_mesh(groups.experts)) for unit in dealt if groups.experts is not None]
    data_mesh = _data_mesh(groups.mesh)
    # FSDP takes the host's time for each unit, and on a CPU waits for each sum of gradients. Where there is nobody to
    # divide with, or where there are copies of a small model, one has all parameters and stays gathered in both passes.
    others = {parameter for unit, _ in apart for parameter in unit.parameters()}
    numbers = sum(parameter.numel() for parameter in module.parameters() if parameter not in others)
    whole = data_mesh.size() == 1 or copied_at_once(plan.layout, numbers)
    units = (module,) if whole else (*layers(module), module)
    for unit, over in (*apart, *((unit, data_mesh) for unit in units)):
        if context.model.user_model is not None:
            unit.register_forward_hook(in_memory_of_its_own)
        policies = sharding_policies(context.spec, gives_results=gives_results and unit is module)
        divides = plan.layout.pipeline == 1 and not (whole and unit is module)
        fully_shard(unit, mesh=over, reshard_after_forward=divides, **policies)
        unit.set_gradient_divide_factor(1.0)
        unit.set_force_sum_reduction_for_comms(True)


def _data_mesh(mesh: DeviceMesh) -> DeviceMesh:
    """Copies and shards; a dimension of one rank would still be an exchange with itself."""
    return mesh["replicate", "shard"] if mesh["replicate"].size() > 1 else mesh["shard"]
