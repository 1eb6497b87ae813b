"""One pass of a rank's stages over a part of the batch: through the schedule of a pipeline, or through the whole model.

Huang et al., "GPipe", NeurIPS 2019; Narayanan et al., SOSP 2019 (1F1B) and SC 2021 (interleaved); Qi et al., "Zero
Bubble Pipeline Parallelism", ICLR 2024 (zero-bubble, ZBV); DeepSeek-AI, "DeepSeek-V3", 2024 (DualPipe).
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from paceline.contract.context import Context
from paceline.frameworks.torch.evaluation import Loss
from paceline.frameworks.torch.loss_in_head import loss_of_inputs, loss_of_outputs
from paceline.frameworks.torch.pipeline.stages import room_for
from paceline.frameworks.torch.sharded import send_with_last_pass
from paceline.strategies.torch.mesh.stages import MeshStage, RankStages

# Trains on one pass: inputs where the first stage is, targets where the last is, which alone knows the loss.
TrainPass = Callable[[Tensor | None, Tensor | None, bool], Tensor | None]


def scheduled_pass(context: Context, stages: RankStages, loss: Loss, scaled: Callable[[Tensor], Tensor]) -> TrainPass:
    """One pass of the pipeline's schedule; gradients are sent in the last pass of a step."""
    from torch.distributed.pipelining import schedules

    plan = stages.plan
    kinds: dict[str, Any] = {
        "gpipe": schedules.ScheduleGPipe, "1f1b": schedules.Schedule1F1B,
        "interleaved": schedules.ScheduleInterleaved1F1B,
        "interleaved-zero-bubble": schedules.ScheduleInterleavedZeroBubble,
        "zbv": schedules.ScheduleZBVZeroBubble, "dualpipev": schedules.ScheduleDualPipeV,
    }  # fmt: skip
    parts = [_pipeline_stage(context, stages, stage) for stage in stages.held]
    several = plan.schedule not in ("gpipe", "1f1b")
    schedule = kinds[plan.schedule](
        parts if several else parts[0], n_microbatches=plan.microbatches, scale_grads=False,
        loss_fn=lambda outputs, targets: scaled(loss(outputs, targets)),
    )  # fmt: skip

    def train(inputs: Tensor | None, targets: Tensor | None, last: bool) -> Tensor | None:
        for part in parts:
            part.reduces = last
        shares: list[Tensor] = []
        arguments = () if inputs is None else (inputs,)
        losses = shares if stages.gives_outputs else None
        schedule.step(*arguments, target=targets, losses=losses, return_outputs=False)
        return torch.stack([share.detach() for share in shares]).sum() if stages.gives_outputs else None

    return train


def _pipeline_stage(context: Context, stages: RankStages, stage: MeshStage) -> Any:
    from torch.distributed.pipelining import PipelineStage

    class AccumulatingStage(PipelineStage):
        """A stage that reduces its gradients only where it is told to, after the last pass of a step."""

        reduces = True

        def perform_reduce_grad(self, grad_scale_factor: int) -> None:
            if self.reduces:
                super().perform_reduce_grad(grad_scale_factor)

        def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
            # What goes back in two passes may lie in another order than the room for it, and is sent as it lies.
            for name, gradients in list(self.bwd_cache.items()):
                self.bwd_cache[name] = tuple(
                    gradient if gradient is None else gradient.contiguous() for gradient in gradients
                )
            sending: list[dist.P2POp] = super().get_bwd_send_ops(bwd_chunk_id)
            return sending

    samples = int(stages.plan.microbatch)
    assert stage.input is not None and stage.output is not None
    inputs = room_for(context, stage.input, stage.index == 0, samples, stages.device)
    outputs = stage.output.empty(samples, stages.device)
    return AccumulatingStage(
        stage.module, stage.index, stages.plan.stages, stages.device, group=stages.mesh.get_group("pipeline"),
        # With both shapes known nothing is run to find them; an input that gradients go back to must say so.
        input_args=(inputs.requires_grad_(stage.index > 0 and inputs.is_floating_point()),),
        output_args=(outputs.requires_grad_(outputs.is_floating_point()),),
    )  # fmt: skip


def whole_pass(context: Context, stages: RankStages, loss: Loss, scaled: Callable[[Tensor], Tensor]) -> TrainPass:
    """One forward and backward pass of a model that is not cut into stages."""
    (stage,) = stages.held
    module = stage.module
    assert isinstance(module, FSDPModule)
    # Logits that are split keep their loss, which is known for parts of the vocabulary.
    split = stages.parts_of_logits is not None
    loss_of = loss_of_outputs(module, loss) if split else loss_of_inputs(context, module, loss)

    def train(inputs: Tensor | None, targets: Tensor | None, last: bool) -> Tensor | None:
        assert inputs is not None and targets is not None
        if stages.plan.accumulation > 1 and stages.plan.reduce == "last":
            send_with_last_pass(module, last)
        share = scaled(loss_of(inputs, targets))
        share.backward()
        return share.detach()

    return train
