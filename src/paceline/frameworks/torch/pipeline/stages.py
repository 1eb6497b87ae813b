"""Training a model that is cut into stages: one batch at a time through all of them, or micro-batches on a schedule."""

from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from paceline.contract.context import Context
from paceline.contract.job import Evaluation
from paceline.costs.cuts import Pipeline
from paceline.errors import ModelError
from paceline.frameworks.torch.checkpoint import TorchCheckpoint
from paceline.frameworks.torch.evaluation import loss_function
from paceline.frameworks.torch.group import join_group
from paceline.frameworks.torch.pipeline.cut import Edge, Stage, cut_model, in_half
from paceline.frameworks.torch.precision import LossScale, loss_scale, shared_casts
from paceline.frameworks.torch.resident_data import IMAGE_DIMENSIONS
from paceline.frameworks.torch.training import (
    TorchJob,
    export_weights,
    optimizer_for,
    torch_device,
)
from paceline.workloads.base import Weights

# Trains on a batch: inputs on the first stage, targets on the last, which alone knows the mean loss.
Train = Callable[[Tensor | None, Tensor | None], Tensor | None]


class LocalStages(nn.Module):
    """The stages that a process holds, and which ranks hold the others."""

    def __init__(self, stages: Sequence[Stage], workers: int, device: torch.device) -> None:
        super().__init__()
        self.stage_modules = nn.ModuleList(stage.module for stage in stages).to(device)
        self.stages, self.workers, self.device = stages, workers, device
        self.takes_inputs, self.gives_outputs = stages[0].first, stages[-1].last
        self.scale: LossScale | None = None

    @property
    def loss_factor(self) -> float:
        """What the loss is multiplied by."""
        return 1.0 if self.scale is None else self.scale.factor

    def rank_of(self, stage: int) -> int:
        """The rank that holds a stage."""
        return stage % self.workers

    def forward(self, inputs: Tensor) -> Tensor | None:
        """The outputs of the whole model where its last stage is, else nothing."""
        output = self.run(inputs, len(inputs))[-1][1] if len(inputs) else None
        return output if self.gives_outputs else None

    def run(self, inputs: Tensor | None, samples: int) -> list[tuple[Tensor, Tensor]]:
        """One batch through this process's stages: what each received and its output."""
        passes = []
        for stage in self.stages:
            if stage.first:
                assert inputs is not None
                received = inputs
            else:
                received = stage.input.empty(samples, self.device)
                dist.recv(received, self.rank_of(stage.index - 1))
                received.requires_grad_(torch.is_grad_enabled() and received.is_floating_point())
            output = stage.module(received)
            if not stage.last:
                dist.send(output.detach(), self.rank_of(stage.index + 1))
            passes.append((received, output))
        return passes


def join_stages(context: Context, pipeline: Pipeline, balance: str) -> LocalStages:
    """Joins the other processes, cuts the model and keeps the stages of this process."""
    device = torch_device(context)
    join_group(context)
    stages = cut_model(context, pipeline.stages, balance, device)
    held = [in_half(context.spec, stage) for stage in stages[context.process.rank :: pipeline.workers]]
    local = LocalStages(held, pipeline.workers, device)
    local.scale = loss_scale(context.spec, device, agree=True)
    return local


def add_tied_gradients(local: LocalStages) -> None:
    """Adds up the gradients of parameters that the first and the last stage both have, so that they stay the same."""
    last = local.stages[0].count - 1
    if last == 0:
        return
    first_has = local.stages[0].tied if local.takes_inputs else []
    last_has = local.stages[-1].tied if local.gives_outputs else []
    if first_has and last_has:
        for first, copy in zip(first_has, last_has, strict=True):
            assert first.grad is not None and copy.grad is not None
            first.grad.add_(copy.grad)
            copy.grad.copy_(first.grad)
        return
    other_rank = local.rank_of(last if first_has else 0)
    for parameter in first_has or last_has:
        assert parameter.grad is not None
        sent, arriving = parameter.grad.contiguous(), torch.empty_like(parameter.grad).contiguous()
        ways = [dist.P2POp(dist.isend, sent, other_rank), dist.P2POp(dist.irecv, arriving, other_rank)]
        for request in dist.batch_isend_irecv(ways):
            request.wait()
        parameter.grad.add_(arriving)


def one_batch(context: Context, local: LocalStages, samples: int) -> Train:
    """The whole batch at once: while one worker computes, the others wait."""
    loss_of, (stage,) = loss_function(context), local.stages

    def train(inputs: Tensor | None, targets: Tensor | None) -> Tensor | None:
        ((received, output),) = local.run(inputs, samples)
        loss: Tensor | None = None
        if stage.last:
            assert targets is not None
            loss = loss_of(output, targets)
            (loss * local.loss_factor).backward()
        else:
            gradient = stage.output.empty(samples, local.device)
            dist.recv(gradient, local.rank_of(stage.index + 1))
            output.backward(gradient)
        if not stage.first:
            assert received.grad is not None
            dist.send(received.grad, local.rank_of(stage.index - 1))
        return None if loss is None else loss.detach()

    return train


def in_microbatches(context: Context, local: LocalStages, pipeline: Pipeline) -> Train:
    """Micro-batches on one of PyTorch's schedules."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

    count, loss_of = pipeline.microbatches, loss_function(context)
    size = pipeline.samples // count
    pipeline_stages = [
        PipelineStage(
            stage.module, stage.index, stage.count, local.device,
            # With both shapes known nothing is run to find them; an input that gradients go back to must say so.
            input_args=(_example(room_for(context, stage.input, stage.first, size, local.device), stage.first),),
            output_args=(_example(stage.output.empty(size, local.device), False),),
        )
        for stage in local.stages
    ]  # fmt: skip
    kinds: dict[str, Any] = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B, "interleaved": ScheduleInterleaved1F1B}
    kind = kinds[pipeline.schedule]
    schedule = kind(
        pipeline_stages if pipeline.schedule == "interleaved" else pipeline_stages[0],
        n_microbatches=count,
        # The mean over the batch is the sum of the micro-batches' shares of it.
        loss_fn=lambda outputs, targets: loss_of(outputs, targets) / count * local.loss_factor,
        # PyTorch 2.6 has no such choice and does not scale.
        **({"scale_grads": False} if "scale_grads" in signature(kind).parameters else {}),
    )
    options = {"return_outputs": False} if "return_outputs" in signature(schedule.step).parameters else {}

    def train(inputs: Tensor | None, targets: Tensor | None) -> Tensor | None:
        shares: list[Tensor] = []
        first_inputs = () if inputs is None else (inputs,)
        with shared_casts(context.spec):
            schedule.step(*first_inputs, target=targets, losses=shares if local.gives_outputs else None, **options)
        if not local.gives_outputs:
            return None
        return torch.stack([share.detach() for share in shares]).sum() / local.loss_factor

    return train


def room_for(context: Context, edge: Edge, first: bool, samples: int, device: torch.device) -> Tensor:
    """A receive buffer for a stage, with the final strides, which some versions of PyTorch compare."""
    room = edge.empty(samples, device)
    if not first or room.ndim != IMAGE_DIMENSIONS or context.spec.memory_format != "channels_last":
        return room
    count, channels, height, width = room.shape
    return room.view(count, height, width, channels).permute(0, 3, 1, 2)


def _example(tensor: Tensor, outside: bool) -> Tensor:
    return tensor if outside else tensor.requires_grad_(tensor.is_floating_point())


class StageJob(TorchJob):
    """Training in a process that holds some stages of the model."""

    def __init__(self, context: Context, local: LocalStages, train: Train) -> None:
        trains = any(parameter.requires_grad for parameter in local.parameters())
        optimizer = optimizer_for(context, local) if trains else None
        if isinstance(optimizer, torch.optim.LBFGS):
            raise ModelError("L-BFGS needs all parameters in one place; use another optimizer, or torch-single")
        super().__init__(context, local, local.device, optimizer, share=(0, 1))
        self._local, self._train = local, train
        self._scale = local.scale

    def step(self, first: int, count: int) -> None:
        """Forward and backward through all stages, then each process updates what it holds."""
        for number in range(first, first + count):
            inputs, targets = self._part_of_batch(
                self._order[number], self._local.takes_inputs, self._local.gives_outputs
            )
            self._module.zero_grad(set_to_none=True)
            loss = self._train(inputs, targets)
            add_tied_gradients(self._local)
            # A rank without parameters is asked too.
            may_step = self._scale is None or self._scale.unscale(self._module.parameters())
            if self._optimizer is not None and may_step:
                self._optimizer.step()
            if loss is not None:
                self._keep(loss)

    def losses(self) -> list[float] | None:  # type: ignore[override]  # `Job` allows None
        """The losses, on the last stage only."""
        return super().losses() if self._local.gives_outputs else None

    def evaluate(self) -> Evaluation | None:  # type: ignore[override]
        """One batch of the test set at a time through all stages."""
        evaluation = super().evaluate()
        return evaluation if self._local.gives_outputs else None

    def weights(self) -> Weights:
        """All stages' tensors, gathered where the weights are written."""
        tensors: dict[str, Tensor] = {}
        for stage in self._local.stages:
            state = stage.module.state_dict()
            tensors |= {whole: state[name].detach().cpu() for whole, name in stage.names.items()}
        first = dist.get_rank() == 0
        gathered: list[dict[str, Tensor]] | None = [{} for _ in range(self._local.workers)] if first else None
        dist.gather_object(tensors, gathered)
        if gathered is None:
            return {}
        return export_weights(self._context, {name: tensor for part in gathered for name, tensor in part.items()})

    def checkpoint(self) -> TorchCheckpoint:
        """The stages that this process holds."""
        return self._checkpoint_of(self._module)

    def details(self) -> dict[str, Any]:
        """With the stages and layers that this process holds."""
        layers = [name for stage in self._local.stages for name in stage.layer_names]
        return {**super().details(), "stages": [stage.index for stage in self._local.stages], "layers": layers}

    def close(self) -> None:
        """Releases the schedule, which holds buffers and the group."""
        del self._train, self._local
        super().close()
