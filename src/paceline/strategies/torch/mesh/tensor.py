"""Tensor and sequence parallelism of built-in transformers: layers split, activations divided along the sequence.

Shoeybi et al., "Megatron-LM", 2019, and Korthikanti et al., MLSys 2023: between the layers each rank has some positions
of the sequence; they are gathered where a split product needs all of them and scattered where its parts are summed. The
head's logits stay split over the vocabulary, and so does the loss. Experts of a mixture are not split: each rank sends
the vectors of its positions to them (`experts.py`).
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from paceline.frameworks.torch.evaluation import Loss
from paceline.frameworks.torch.layers import BlockModule, EmbedModule
from paceline.frameworks.torch.transformer_layers import LlamaModule, MoeModule, TokenEmbedModule

# Dimensions of activations; the first are the samples.
SEQUENCE, FEATURES = 1, 2
# Name of a parameter ─► a dimension and the order along it in which each rank's heads lie together.
Reordered = dict[str, tuple[int, Tensor]]


def split_transformer(module: nn.Module, mesh: DeviceMesh, whole_positions: bool) -> Reordered:
    """Splits the layers in place, so that every parameter is on the mesh; says which rows were put in another order.

    `whole_positions` has every rank keep all positions' vectors, where each uses some of a stretch of the sequence.
    """
    if mesh.size() == 1:
        return {}
    reordered: Reordered = {}
    plan: dict[str, Any] = {}
    for name, child in module.named_children():
        if isinstance(child, EmbedModule | TokenEmbedModule):
            plan[f"{name}.tokens"] = RowwiseParallel(
                input_layouts=Replicate(), output_layouts=Shard(SEQUENCE), use_local_output=False
            )
        if isinstance(child, EmbedModule):
            _split_positions(child, mesh, whole_positions)
        elif isinstance(child, BlockModule):
            plan |= _split_block(name, child, mesh.size(), reordered)
        elif isinstance(child, LlamaModule):
            plan |= _split_llama(name, child)
        elif isinstance(child, nn.LayerNorm | nn.RMSNorm):
            plan[name] = SequenceParallel()
        elif isinstance(child, nn.Linear):
            plan[name] = ColwiseParallel(input_layouts=Shard(SEQUENCE))
    # Every rank has the same weights, so that none has to send them.
    parallelize_module(module, mesh, plan, src_data_rank=None)
    for child in module.children():
        if isinstance(child, EmbedModule | TokenEmbedModule | nn.LayerNorm | nn.RMSNorm):
            child.register_forward_hook(_keep_local)
        elif isinstance(child, LlamaModule):
            child.norm1.register_forward_hook(_gather)
            # Experts take the vectors of the rank's own positions.
            child.norm2.register_forward_hook(_keep_local if isinstance(child, MoeModule) else _gather)
    return reordered


def _split_positions(embed: EmbedModule, mesh: DeviceMesh, whole: bool) -> None:
    placement = Replicate() if whole else Shard(0)
    local = distribute_tensor(embed.positions.data, mesh, [placement], src_data_rank=None)
    embed.register_parameter("positions", nn.Parameter(local))


def _split_block(name: str, block: BlockModule, ways: int, reordered: Reordered) -> dict[str, Any]:
    """Each rank's heads: its rows of the queries, of the keys and of the values, side by side."""
    width = block.qkv.in_features
    order = torch.arange(3 * width).view(3, ways, -1).transpose(0, 1).reshape(-1)
    with torch.no_grad():
        for kind, parameter in block.qkv.named_parameters():
            parameter.copy_(parameter.index_select(0, order.to(parameter.device)))
            reordered[f"{name}.qkv.{kind}"] = (0, order)
    block.heads //= ways
    gathering, scattering = (
        ColwiseParallel(input_layouts=Shard(SEQUENCE)),
        RowwiseParallel(output_layouts=Shard(SEQUENCE)),
    )
    return {
        f"{name}.norm1": SequenceParallel(), f"{name}.qkv": gathering, f"{name}.out": scattering,
        f"{name}.norm2": SequenceParallel(), f"{name}.up": gathering, f"{name}.down": scattering,
    }  # fmt: skip


def _split_llama(name: str, block: LlamaModule) -> dict[str, Any]:
    """Several products take what a norm gives, so that it is gathered once, behind the norm."""
    is_mixture = isinstance(block, MoeModule)
    dense = () if is_mixture else ("gate", "up", "down")
    columns = {part: ColwiseParallel(input_layouts=Replicate()) for part in ("q", "k", "v", *dense[:2])}
    rows = {part: RowwiseParallel(output_layouts=Shard(SEQUENCE)) for part in ("out", *dense[2:])}
    norms: dict[str, Any] = {part: SequenceParallel() for part in ("norm1", "norm2")}
    # Of a router each rank has a part of the gradient, as of a norm: it is given vectors one after another.
    router = {"router": SequenceParallel(sequence_dim=0, use_local_output=True)} if is_mixture else {}
    return {f"{name}.{part}": style for part, style in {**columns, **rows, **norms, **router}.items()}


def _gather(_norm: nn.Module, _inputs: Any, output: Any) -> Any:
    """All positions on every rank; of its gradient each rank has a part of a sum, which is scattered again."""
    return output.redistribute(placements=[Replicate()])


def _keep_local(_layer: nn.Module, _inputs: Any, output: Any) -> Any:
    """The rank's positions as a plain tensor, which can be added and sent."""
    return output.to_local() if isinstance(output, DTensor) else output


def whole_rows(name: str, tensor: Tensor, reordered: Reordered) -> Tensor:
    """A whole parameter in the order that it has in the model."""
    if name not in reordered:
        return tensor
    dimension, order = reordered[name]
    return tensor.index_select(dimension, order.argsort().to(tensor.device))


def whole_channels(name: str, tensor: Tensor, by_hand: dict[str, int], group: dist.ProcessGroup) -> Tensor:
    """A parameter of a convolution, put together from the output channels of each rank."""
    if name not in by_hand:
        return tensor
    parts = [torch.empty_like(tensor).contiguous() for _ in range(group.size())]
    dist.all_gather(parts, tensor.contiguous(), group=group)
    return torch.cat(parts, by_hand[name])


def split_loss(loss_of: Loss, mesh: DeviceMesh | None, vocabulary: int) -> Loss:
    """The loss of logits of which each rank has a part of the vocabulary."""
    if mesh is None:
        return loss_of

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return loss_of(_split_logits(outputs, mesh, vocabulary), targets).to_local()

    return loss


def whole_logits(outputs: Tensor, mesh: DeviceMesh | None, vocabulary: int) -> Tensor:
    """All ranks' parts of the logits, for evaluation."""
    return outputs if mesh is None else _split_logits(outputs, mesh, vocabulary).full_tensor()


def _split_logits(outputs: Tensor, mesh: DeviceMesh, vocabulary: int) -> DTensor:
    samples, length, _ = outputs.shape
    shape = (samples, length, vocabulary)
    return DTensor.from_local(
        outputs,
        mesh,
        [Shard(FEATURES)],
        run_check=False,
        shape=torch.Size(shape),
        stride=(length * vocabulary, vocabulary, 1),
    )


def losses_split_over_vocabulary(mesh: DeviceMesh | None) -> AbstractContextManager[Any]:
    """Within it, forward and backward passes of a loss work on logits that are split."""
    return loss_parallel() if mesh is not None else nullcontext()
