"""How a run's layout divides its batch and its layers: passes, micro-batches, and which rank holds which stages."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, cast

from paceline.costs.footprint import ModelFacts
from paceline.costs.layers import LayerFacts
from paceline.costs.splits import Split, split_layers
from paceline.layout import Layout
from paceline.spec import Device, RunSpec, Scalar

Schedule = Literal["gpipe", "1f1b", "interleaved", "interleaved-zero-bubble", "zbv", "dualpipev"]
SCHEDULES: tuple[Schedule, ...] = ("gpipe", "1f1b", "interleaved", "interleaved-zero-bubble", "zbv", "dualpipev")
# Schedules in which each rank holds a single stage.
_ONE_STAGE = ("gpipe", "1f1b")
# Schedules in which stages go down the ranks and back up again: each rank holds two of them.
V_SHAPED = ("zbv", "dualpipev")
# Of these, gradients of activations and of weights come in two passes.
SPLIT_BACKWARD = ("interleaved-zero-bubble", "zbv", "dualpipev")
# What stages have alike: counted work, measured time, or the number of blocks.
Balance = Literal["counted", "measured", "blocks"]
BALANCES: tuple[Balance, ...] = ("counted", "measured", "blocks")
# How attention sees the keys and values of other ranks' parts of a sequence.
Attention = Literal["gathered", "ring"]
ATTENTION: tuple[Attention, ...] = ("gathered", "ring")
# Where a step has several passes: whether shards get the sum of all gradients with the last pass, or those of each.
Reduce = Literal["last", "each"]
REDUCTIONS: tuple[Reduce, ...] = ("last", "each")
REDUCE_ABOUT = "of several passes: sum gradients with the last one, or in each, which holds no whole gradients between"
# In a ring each rank has two pieces of a sequence; kernels of GPUs pad results for so many positions, and what they
# give for single pieces is only put together where there is no padding in between.
RING_PIECES, RING_POSITIONS_ON_GPU = 2, 32
# Micro-batches for each rank of a pipeline where nothing is said.
USUAL_MICROBATCHES = 2


@dataclass(frozen=True)
class MeshPlan:
    """One step of a rank: `accumulation` passes of the schedule, each of `microbatches` micro-batches."""

    layout: Layout
    # Of one data rank in one step.
    samples: int
    accumulation: int = 1
    microbatches: int = 1
    schedule: Schedule = "1f1b"
    stages_per_worker: int = 1
    balance: Balance = "counted"
    # Of models that are no causal transformer: whether each rank has some output channels of a convolution, or all.
    split_convolutions: bool = True
    # Whether the model's head computes with its table of tokens.
    tied: bool = False
    attention: Attention = "gathered"
    reduce: Reduce = "last"

    @classmethod
    def of(cls, spec: RunSpec, knobs: Mapping[str, Scalar]) -> "MeshPlan":
        """The plan that a run's layout describes; without a layout, everything is sharded over all workers."""
        layout = spec.layout or Layout(shard=spec.workers)
        schedule = cast("Schedule", knobs["schedule"])
        stages = 1
        if layout.pipeline > 1 and schedule not in _ONE_STAGE:
            stages = 2 if schedule in V_SHAPED else int(knobs["stages_per_worker"])
        usual = USUAL_MICROBATCHES * layout.pipeline if layout.pipeline > 1 else 1
        return cls(
            layout=layout,
            samples=spec.samples_per_step // layout.data_ranks,
            accumulation=spec.accumulation,
            microbatches=int(knobs["microbatches"]) or usual,
            schedule=schedule,
            stages_per_worker=stages,
            balance=cast("Balance", knobs["balance"]),
            split_convolutions=knobs.get("convolutions") != "replicated",
            attention=cast("Attention", knobs["attention"]),
            reduce=cast("Reduce", knobs["reduce"]),
        )

    def splits(self, model: ModelFacts) -> tuple[Split, ...]:
        """How each layer of a model that is no causal transformer is split over `tensor`; the sequence stays whole."""
        return split_layers(model, self.layout.tensor, self.split_convolutions)

    @property
    def stages(self) -> int:
        """The number of stages of the whole pipeline."""
        return self.layout.pipeline * self.stages_per_worker

    @property
    def passes(self) -> int:
        """Forward passes of each stage in one step."""
        return self.accumulation * self.microbatches

    @property
    def microbatch(self) -> float:
        """Samples in one forward pass."""
        return self.samples / self.passes

    @property
    def stretch_microbatch(self) -> float:
        """Samples in one forward pass, counted as whole sequences where each rank has only a part of every sequence."""
        return self.microbatch / self.layout.context

    def settled(self, model: ModelFacts) -> "MeshPlan":
        """The plan completed with what depends on the model."""
        tied = model.derive(("tied",), lambda: any(layer.tied for layer in model.layers))
        return self if self.tied == tied else replace(self, tied=tied)

    @property
    def in_ring(self) -> bool:
        """Whether keys and values go round in a ring."""
        return self.layout.context > 1 and self.attention == "ring"

    def ring_multiple(self, device: Device) -> int:
        """What the length of a sequence must be a multiple of for a ring."""
        return self.layout.context * RING_PIECES * (1 if device == "cpu" else RING_POSITIONS_ON_GPU)

    @property
    def gathers(self) -> tuple[int, int]:
        """How often in a step FSDP gathers a layer for forward passes, and again for backward passes.

        Without a pipeline it is freed after each forward pass, but between the passes of a step only where gradients
        are reduced in each; stages stay gathered, those of schedules with several stages for one pass of the schedule,
        others for all of the step.
        """
        if self.layout.pipeline == 1:
            return self.reductions, self.accumulation
        return (1 if self.schedule in _ONE_STAGE else self.accumulation), 0

    @property
    def reductions(self) -> int:
        """How often in a step gradients are reduced."""
        return self.accumulation if self.reduce == "each" else 1

    @property
    def adds_up_whole(self) -> bool:
        """Whether whole gradients of several passes are added up before they are reduced, parameters gathered."""
        return self.layout.pipeline > 1 or (self.accumulation > 1 and self.reduce == "last")

    @property
    def division(self) -> tuple[object, ...]:
        """The fields that decide how the model is divided; batch size and number of copies are not among them."""
        layout = self.layout
        return (
            layout.pipeline, layout.tensor, layout.context, layout.expert, self.stages_per_worker,
            self.schedule in V_SHAPED, self.balance, self.split_convolutions, self.attention, self.tied,
        )  # fmt: skip

    def holder(self, stage: int) -> int:
        """The place in the pipeline that holds a stage."""
        lap, place = divmod(stage, self.layout.pipeline)
        return self.layout.pipeline - 1 - place if lap % 2 and self.schedule in V_SHAPED else place

    def held_stages(self, place: int) -> tuple[int, ...]:
        """The stages of one place in the pipeline, first to last."""
        return tuple(stage for stage in range(self.stages) if self.holder(stage) == place)

    def passes_kept(self, place: int) -> float:
        """How many forward passes of a micro-batch a rank keeps at once, waiting for their backward pass."""
        ranks, count = self.layout.pipeline, self.microbatches
        match self.schedule:
            case "1f1b":
                return min(count, ranks - place)
            case "interleaved":
                # Narayanan et al. 2021, as PyTorch does it: so many passes of single stages before the first backward.
                round_size = count // max(1, count // ranks)
                ahead = (self.stages_per_worker - 1) * round_size + 2 * (ranks - 1 - place) + 1
                return min(count, ahead / self.stages_per_worker)
            case "interleaved-zero-bubble" | "zbv":
                return min(count, ranks)
            case "dualpipev":
                return min(count, ranks + 1 / 2)
        return count


def is_causal_transformer(model: ModelFacts) -> bool:
    """Whether every layer is one of a causal transformer's, so that `tensor` divides the sequence too."""

    def has_only_its_layers() -> bool:
        layers = [layer for layer, _ in model.runs]
        return any(layer.heads for layer in layers) and all(map(transformer_role, layers))

    return model.derive(("is_causal_transformer",), has_only_its_layers)


def transformer_role(layer: LayerFacts) -> str | None:
    """Which part of a causal transformer a layer is; None for layers that none of them has."""
    names = {name for name, _ in layer.arrays}
    if layer.heads:
        return "block" if layer.causal else None
    if layer.tied:
        return "head"
    for role, array in (("embed", "tokens"), ("norm", "scale"), ("head", "kernel")):
        if array in names:
            return role if layer.kind != "convolution" and "segments" not in names else None
    return None
