"""Training a model that is cut into stages: one batch at a time through the line, or micro-batches on a schedule.

Huang et al., "GPipe", NeurIPS 2019; Narayanan et al., "PipeDream", SOSP 2019 (1F1B), and "Efficient Large-Scale
Language Model Training on GPU Clusters Using Megatron-LM", SC 2021 (interleaved).
"""

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
from paceline.frameworks.torch.grid import GradientAverage, Grid, arrange
from paceline.frameworks.torch.group import join_group, leave_group
from paceline.frameworks.torch.pipeline.cut import Piece, cut_model
from paceline.frameworks.torch.training import (
    IMAGE_DIMENSIONS,
    TorchJob,
    export_weights,
    loss_function,
    optimizer_for,
    torch_device,
)
from paceline.workloads.base import Weights

# Trains on a batch: inputs on the first stage, targets on the last, which alone knows the mean loss.
Train = Callable[[Tensor | None, Tensor | None], Tensor | None]


class Line(nn.Module):
    """The pieces of a model that a process holds, and where the others are."""

    def __init__(self, pieces: Sequence[Piece], grid: Grid, device: torch.device) -> None:
        super().__init__()
        self.stages = nn.ModuleList(piece.module for piece in pieces).to(device)
        self.pieces, self.grid, self.device = pieces, grid, device
        self.takes_inputs, self.gives_outputs = pieces[0].first, pieces[-1].last

    def rank_of(self, stage: int) -> int:
        """Who holds a stage."""
        return self.grid.row_ranks[stage % len(self.grid.row_ranks)]

    def forward(self, inputs: Tensor) -> Tensor | None:
        """The outputs of the whole model where its last stage is, else nothing."""
        made = self.run(inputs, len(inputs))[-1][1] if len(inputs) else None
        return made if self.gives_outputs else None

    def run(self, inputs: Tensor | None, samples: int) -> list[tuple[Tensor, Tensor]]:
        """One batch through this process's pieces: what each was given and what it made."""
        passed = []
        for piece in self.pieces:
            if piece.first:
                assert inputs is not None
                given = inputs
            else:
                given = piece.given.empty(samples, self.device)
                dist.recv(given, self.rank_of(piece.index - 1), group=self.grid.row_group)
                given.requires_grad_(torch.is_grad_enabled() and given.is_floating_point())
            made = piece.module(given)
            if not piece.last:
                dist.send(made.detach(), self.rank_of(piece.index + 1), group=self.grid.row_group)
            passed.append((given, made))
        return passed


def join_line(context: Context, pipeline: Pipeline, balance: str) -> Line:
    """Joins the others, cuts the model and keeps what falls to this process."""
    device = torch_device(context)
    join_group(context)
    grid = arrange(context, pipeline.workers)
    pieces = cut_model(context, pipeline.stages, balance, device)
    return Line(pieces[grid.place :: pipeline.workers], grid, device)


def one_batch(context: Context, line: Line, samples: int) -> Train:
    """The whole batch at once: while one worker computes, the others wait."""
    loss_of, (piece,) = loss_function(context), line.pieces

    def train(inputs: Tensor | None, targets: Tensor | None) -> Tensor | None:
        ((given, made),) = line.run(inputs, samples)
        loss: Tensor | None = None
        if piece.last:
            assert targets is not None
            loss = loss_of(made, targets)
            loss.backward()
        else:
            gradient = piece.made.empty(samples, line.device)
            dist.recv(gradient, line.rank_of(piece.index + 1), group=line.grid.row_group)
            made.backward(gradient)
        if not piece.first:
            assert given.grad is not None
            dist.send(given.grad, line.rank_of(piece.index - 1), group=line.grid.row_group)
        return None if loss is None else loss.detach()

    return train


def in_microbatches(context: Context, line: Line, pipeline: Pipeline) -> Train:
    """Micro-batches on one of PyTorch's schedules."""
    from torch.distributed.pipelining import (
        PipelineStage,
        Schedule1F1B,
        ScheduleGPipe,
        ScheduleInterleaved1F1B,
    )

    count, loss_of = pipeline.microbatches, loss_function(context)
    size = pipeline.samples // count
    stages = [
        PipelineStage(
            piece.module, piece.index, piece.count, line.device, group=line.grid.row_group,
            # With both shapes known nothing is run to find them; an input that gradients go back to must say so.
            input_args=(_example(_room(context, piece, size, line.device), piece.first),),
            output_args=(_example(piece.made.empty(size, line.device), False),),
        )
        for piece in line.pieces
    ]  # fmt: skip
    kinds: dict[str, Any] = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B, "interleaved": ScheduleInterleaved1F1B}
    kind = kinds[pipeline.schedule]
    schedule = kind(
        stages if pipeline.schedule == "interleaved" else stages[0],
        n_microbatches=count,
        # The mean over the batch is the sum of the micro-batches' shares of it.
        loss_fn=lambda outputs, targets: loss_of(outputs, targets) / count,
        # PyTorch 2.6 has no such choice and does not scale.
        **({"scale_grads": False} if "scale_grads" in signature(kind).parameters else {}),
    )
    options = {"return_outputs": False} if "return_outputs" in signature(schedule.step).parameters else {}

    def train(inputs: Tensor | None, targets: Tensor | None) -> Tensor | None:
        shares: list[Tensor] = []
        given = () if inputs is None else (inputs,)
        schedule.step(*given, target=targets, losses=shares if line.gives_outputs else None, **options)
        return torch.stack([share.detach() for share in shares]).sum() if line.gives_outputs else None

    return train


def _room(context: Context, piece: Piece, samples: int, device: torch.device) -> Tensor:
    """What a stage is given, with the strides that it will have: some versions of PyTorch compare them."""
    room = piece.given.empty(samples, device)
    if not piece.first or room.ndim != IMAGE_DIMENSIONS or context.spec.memory_format != "channels_last":
        return room
    count, channels, height, width = room.shape
    return room.view(count, height, width, channels).permute(0, 3, 1, 2)


def _example(tensor: Tensor, outside: bool) -> Tensor:
    return tensor if outside else tensor.requires_grad_(tensor.is_floating_point())


class StageJob(TorchJob):
    """Training as a process does it that holds some stages of the model."""

    def __init__(self, context: Context, line: Line, train: Train, average: GradientAverage | None = None) -> None:
        trains = any(parameter.requires_grad for parameter in line.parameters())
        optimizer = optimizer_for(context, line) if trains else None
        if isinstance(optimizer, torch.optim.LBFGS):
            raise ModelError("L-BFGS needs all parameters in one place; use another optimizer, or torch-single")
        super().__init__(
            context, line, line.device, optimizer, barrier=dist.barrier, leave=leave_group,
            share=(line.grid.row, line.grid.rows),
        )  # fmt: skip
        self._line, self._train, self._average = line, train, average

    def step(self, first: int, count: int) -> None:
        """Forward and backward along the line, then each process updates what it holds."""
        for number in range(first, first + count):
            index, data = self._order[number], self._data
            inputs = data.batch(data.train, index)[0] if self._line.takes_inputs else None
            targets = data.train[1][index] if self._line.gives_outputs else None
            self._module.zero_grad(set_to_none=True)
            loss = self._train(inputs, targets)
            if self._average is not None:
                self._average.finish()
            if self._optimizer is not None:
                self._optimizer.step()
            if loss is not None:
                self._keep(loss)

    def losses(self) -> list[float] | None:  # type: ignore[override]  # `Job` allows None
        """Only the last stage knows."""
        return super().losses() if self._line.gives_outputs else None

    def evaluate(self) -> Evaluation | None:  # type: ignore[override]
        """The row's part of the test set, one batch at a time through the line."""
        found = super().evaluate()
        return found if self._line.gives_outputs else None

    def weights(self) -> Weights:
        """All stages' tensors, gathered where the weights are written."""
        own: dict[str, Tensor] = {}
        for piece in self._line.pieces:
            state = piece.module.state_dict()
            own |= {whole: state[name].detach().cpu() for whole, name in piece.names.items()}
        ranks = self._line.grid.row_ranks
        gathered: list[dict[str, Tensor]] | None = [{} for _ in ranks] if dist.get_rank() == ranks[0] else None
        dist.gather_object(own, gathered, dst=ranks[0], group=self._line.grid.row_group)
        if gathered is None:
            return {}
        return export_weights(self._context, {name: tensor for part in gathered for name, tensor in part.items()})

    def details(self) -> dict[str, Any]:
        """With the layers that are here."""
        layers = [name for piece in self._line.pieces for name, _ in piece.module.layers.named_children()]
        return {**super().details(), "stages": [piece.index for piece in self._line.pieces], "layers": layers}

    def close(self) -> None:
        """The schedule holds buffers and the group."""
        del self._train, self._line, self._average
        super().close()
