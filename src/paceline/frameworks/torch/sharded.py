"""Optimizer state (ZeRO stage 1) and whole models (FSDP2) divided over ranks."""

import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.utils._pytree import tree_map_only

from paceline.contract.context import Context
from paceline.contract.job import Evaluation
from paceline.data.tree import Tree
from paceline.errors import ModelError
from paceline.frameworks.torch.checkpoint import TorchCheckpoint, is_first_replica
from paceline.frameworks.torch.found_blocks import LISTS, Blocks, find_blocks
from paceline.frameworks.torch.gradients.compression import DataParallelJob, make_contiguous
from paceline.frameworks.torch.loss_in_head import loss_of_inputs
from paceline.frameworks.torch.precision import half_of, reduction_type
from paceline.frameworks.torch.training import TorchJob
from paceline.spec import RunSpec

if TYPE_CHECKING:
    from torch.distributed.optim import ZeroRedundancyOptimizer


def shard_state(optimizer: torch.optim.Optimizer, in_buckets: bool) -> "ZeroRedundancyOptimizer":
    """The same optimizer, whoever made it, with state for this rank's parameters only."""
    # Compiles a dozen optimizers when it is imported, which takes longer than starting a run.
    from torch.distributed.optim import ZeroRedundancyOptimizer

    def keep_local(local_groups: list[dict[str, Any]], **_defaults: Any) -> torch.optim.Optimizer:
        for group, local_group in zip(optimizer.param_groups, local_groups, strict=True):
            group["params"] = local_group["params"]
        mine = {parameter for group in local_groups for parameter in group["params"]}
        for parameter in [parameter for parameter in optimizer.state if parameter not in mine]:
            del optimizer.state[parameter]
        return optimizer

    groups = [dict(group) for group in optimizer.param_groups]
    return ZeroRedundancyOptimizer(groups, optimizer_class=keep_local, parameters_as_bucket_view=in_buckets)


def shard_module(
    context: Context, module: nn.Module, by_layers: bool, reshard_after_forward: bool, replicas: int
) -> None:
    """Divides the module in place: over all ranks, or over each of `replicas` groups of them."""
    scalar = next((name for name, parameter in module.named_parameters() if not parameter.ndim), None)
    if scalar is not None:
        raise ModelError(
            f"FSDP cannot divide {scalar} of {context.spec.workload}, which is a single number without a "
            f"dimension; make it an array of one, such as torch.zeros(1)"
        )
    shards = context.spec.workers // replicas
    sizes, names = ((replicas, shards), ("replicate", "shard")) if replicas > 1 else ((shards,), ("shard",))
    mesh = init_device_mesh("cpu" if context.spec.device == "cpu" else "cuda", sizes, mesh_dim_names=names)
    make_contiguous(module)
    # Built-in models change nothing in place, so for them what this warns of cannot happen.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    for unit in (*(layers(module) if by_layers else ()), module):
        if context.model.user_model is not None:
            unit.register_forward_hook(in_memory_of_its_own)
        policies = sharding_policies(context.spec, gives_results=unit is module)
        fully_shard(unit, mesh=mesh, reshard_after_forward=reshard_after_forward, **policies)


def sharding_policies(spec: RunSpec, gives_results: bool) -> dict[str, Any]:
    """What `fully_shard` is told of the types of numbers, and of where shards wait.

    What the whole model gives is in single precision, so that the loss is.
    """
    half, policies = half_of(spec), dict[str, Any]()
    if half is not None or spec.reduction is not None:
        usual = torch.bfloat16 if spec.precision == "bf16-pure" else torch.float32
        reduced = reduction_type(spec) or usual
        output = torch.float32 if half is not None and gives_results else None
        policies["mp_policy"] = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=reduced, output_dtype=output)
    if spec.offload:
        policies["offload_policy"] = CPUOffloadPolicy(pin_memory=True)
    return policies


def in_memory_of_its_own(_unit: nn.Module, _inputs: Any, output: Any) -> Any:
    """Copies a unit's output if it is a view: views changed in place lose FSDP's hook."""
    return tree_map_only(Tensor, lambda tensor: tensor.clone() if tensor._is_view() else tensor, output)


def layers(module: nn.Module) -> list[nn.Module]:
    """The parts of a model that FSDP gathers one at a time: its blocks, and the layers beside them.

    Those that share a parameter stay with the whole.
    """
    blocks = find_blocks(module)
    candidates = list(_inside(module, blocks or Blocks({})))
    owners = Counter(parameter for layer in candidates for parameter in set(layer.parameters()))
    return [layer for layer in candidates if all(owners[parameter] == 1 for parameter in layer.parameters())]


def _inside(module: nn.Module, blocks: Blocks, prefix: str = "") -> Iterator[nn.Module]:
    """Child modules; lists, and modules that contain blocks, are replaced by their members."""
    for name, child in module.named_children():
        path = f"{prefix}{name}"
        holds = path in blocks.holders or isinstance(child, LISTS)
        if holds and path not in blocks.modules:
            yield from _inside(child, blocks, f"{path}.")
        elif next(child.parameters(), None) is not None:
            yield child


def send_with_last_pass(module: FSDPModule, last: bool) -> None:
    """Says before each of several passes whether it is the last, which reduces gradients and divides parameters."""
    # Not `set_is_last_backward`: FSDP would take earlier passes for part of this one and gather the last layer again.
    module.set_requires_gradient_sync(last)
    module.set_reshard_after_backward(last)


class DividedOptimizerJob(DataParallelJob):
    """Training with DDP and an optimizer whose state is divided over ranks."""

    def checkpoint(self) -> TorchCheckpoint:
        """Each rank's part of the optimizer's state, on the first with the model."""
        return self._checkpoint_of(None if self._context.process.index else self._bare_module())


class ShardedJob(TorchJob):
    """Training on a model that is divided over ranks."""

    autocasts = False
    has_parts = True

    def __init__(self, context: Context, *parts: Any, reduces_each: bool = False, **more: Any) -> None:
        # What is compiled, is compiled block by block.
        super().__init__(context, *parts, **{"compiled": False, **more})
        self._reduces_each = reduces_each
        self._whole_pass = loss_of_inputs(context, self._module, self._loss)

    def _loss_of(self, inputs: Tree, targets: Tree) -> Tensor:
        return self._whole_pass(inputs, targets)

    @contextmanager
    def _sending(self, last: bool) -> Iterator[None]:
        """A context for one of several passes: before the last one, gradients and gathered parameters stay local.

        Where each pass reduces its gradients, there is nothing to say.
        """
        assert isinstance(self._module, FSDPModule)
        if not self._reduces_each:
            send_with_last_pass(self._module, last)
        yield

    def evaluate(self) -> Evaluation:
        """Evaluates, then shards the model again: a forward pass alone leaves it gathered."""
        evaluation = super().evaluate()
        for module in self._module.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
        return evaluation

    def checkpoint(self) -> TorchCheckpoint | None:
        """The shards that this rank holds; of several groups with the same shards, the first saves them."""
        return self._checkpoint_of(self._module) if is_first_replica(self._module) else None

    def close(self) -> None:
        """With what knows the module."""
        del self._whole_pass
        super().close()
