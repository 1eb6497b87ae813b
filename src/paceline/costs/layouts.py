"""How a run's layout divides its batch and its layers: passes, micro-batches, and which rank holds which stages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

from paceline.costs.cuts import FactsOf, most_stages
from paceline.costs.footprint import ModelFacts
from paceline.costs.layers import LayerFacts
from paceline.costs.splits import Split, split_layers, why_not_split
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
        key = ("tied",)
        if key not in model.derived:
            model.derived[key] = any(layer.tied for layer in model.layers)
        return self if self.tied == model.derived[key] else replace(self, tied=model.derived[key])

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

        Without a pipeline it is freed after each forward pass but not between the passes of a step; stages stay
        gathered, those of schedules with several stages for one pass of the schedule, others for all of the step.
        """
        if self.layout.pipeline == 1:
            return 1, self.accumulation
        return (1 if self.schedule in _ONE_STAGE else self.accumulation), 0

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


def recomputes_around(spec: RunSpec, plan: MeshPlan) -> bool:
    """Whether compiled blocks are computed again from outside, all of them, rather than within what is compiled.

    On a CPU, PyTorch 2.13 cannot put what attention has of random numbers beside a mesh of devices among what a
    compiled forward pass leaves; on GPUs it puts it elsewhere.
    """
    splits = plan.layout.tensor > 1
    return spec.execution == "compiled" and spec.recompute == "full" and spec.device == "cpu" and splits


def why_not_laid_out(spec: RunSpec, knobs: Mapping[str, Scalar], facts_of: FactsOf) -> str | None:
    """Why a layout does not fit the model, the batch or the schedule, in words, or None."""
    plan = MeshPlan.of(spec, knobs)
    if spec.optimizer.name == "lbfgs":
        return f"{spec.strategy} divides the parameters and L-BFGS needs them in one place; use another optimizer"
    facts = facts_of(spec) if spec.model is None else None
    return (
        _why_not_scheduled(spec, plan)
        or _why_not_staged(spec, plan, facts)
        or _why_not_split(spec, plan, facts, knobs)
        or _why_not_compiled(spec, plan, facts)
    )


def _why_not_compiled(spec: RunSpec, plan: MeshPlan, facts: ModelFacts | None) -> str | None:
    """Why PyTorch cannot compile the blocks of such a run, or None."""
    if spec.execution != "compiled" or facts is None or not any(layer.experts for layer in facts.layers):
        return None
    if plan.layout.tensor == 1 and spec.recompute == "none":
        return None
    # The compiler breaks such a block off where it deals vectors, and cannot go on with one that is split or recomputed.
    what = "split over tensor" if plan.layout.tensor > 1 else f"computed again (recompute {spec.recompute})"
    return (
        f"blocks of {spec.workload} deal vectors to experts as their numbers say, which cannot be compiled where they "
        f"are {what}; use execution eager"
    )


def _why_not_scheduled(spec: RunSpec, plan: MeshPlan) -> str | None:
    ranks, count = plan.layout.pipeline, plan.microbatches
    if ranks == 1:
        idle = [name for name in ("schedule", "microbatches", "stages_per_worker", "balance") if name in spec.knobs]
        if idle:
            return (
                f"knob {idle[0]} is about a pipeline and layout {plan.layout.text} has none; "
                f"leave it out, or add pipeline=2 to the layout"
            )
    elif count < 1 or plan.stages_per_worker < 1:
        return "microbatches and stages_per_worker of torch-mesh must be more than 0"
    if plan.samples % plan.passes:
        parts = f"{plan.accumulation} passes" if plan.accumulation > 1 else ""
        parts += (" of " if parts else "") + f"{count} micro-batches" if ranks > 1 else ""
        return (
            f"a batch of {plan.samples} for each of {plan.layout.data_ranks} data ranks does not divide into {parts}; "
            f"use a multiple of {plan.passes * plan.layout.data_ranks} as the global batch"
        )
    if ranks > 1 and spec.recompute == "selective" and plan.schedule in SPLIT_BACKWARD:
        return (
            f"schedule {plan.schedule} goes back through each block twice, which selective recomputation does not "
            f"allow; use recompute full, or schedule 1f1b or interleaved"
        )
    return _why_not_in_turn(plan) if ranks > 1 else None


def _why_not_in_turn(plan: MeshPlan) -> str | None:
    """Why PyTorch's schedule refuses this number of micro-batches, or None."""
    ranks, count = plan.layout.pipeline, plan.microbatches
    needed = {"1f1b": ranks, "zbv": ranks, "dualpipev": 2 * ranks}.get(plan.schedule, 1)
    if count < needed:
        return (
            f"schedule {plan.schedule} needs at least {needed} micro-batches on {ranks} ranks, and there are {count}; "
            f"raise knob microbatches"
        )
    if not plan.schedule.startswith("interleaved"):
        return None
    if plan.stages_per_worker < 2:
        return f"schedule {plan.schedule} needs at least 2 stages on each rank; raise knob stages_per_worker"
    if count % max(1, count // ranks):
        return (
            f"schedule {plan.schedule} cannot deal {count} micro-batches to {ranks} ranks; "
            f"set knob microbatches to a multiple of {ranks}"
        )
    return None


def _why_not_staged(spec: RunSpec, plan: MeshPlan, facts: ModelFacts | None) -> str | None:
    if plan.balance == "blocks" and plan.layout.pipeline > 1:
        blocks = sum(layer.heads is not None for layer in facts.layers) if facts is not None else 0
        if blocks < plan.stages:
            return (
                f"balance=blocks gives each of {plan.stages} stages a block of a built-in transformer, and "
                f"{spec.workload} has {blocks}; leave knob balance out"
            )
    if facts is None or plan.layout.pipeline == 1:
        return None
    if plan.schedule in SPLIT_BACKWARD and spec.device == "cpu" and spec.memory_format == "channels_last":
        # PyTorch 2.13 ends with a segmentation fault: `native_group_norm_backward` without a gradient of its input.
        normed = any(layer.kind == "convolution" and _has_norm(layer) for layer in facts.layers)
        if normed:
            return (
                f"schedule {plan.schedule} goes back for weights alone, which norms of {spec.workload} cannot on a CPU "
                f"with channels fastest; use schedule 1f1b or interleaved, or memory format contiguous"
            )
    most = most_stages([layer.parameters > 0 for layer in facts.layers])
    if plan.stages <= most:
        return None
    return (
        f"{spec.workload} has {most} layers to cut between and {plan.stages} stages were asked for "
        f"({plan.layout.pipeline} ranks, {plan.stages_per_worker} each); use fewer of them, or a deeper model"
    )


def _has_norm(layer: LayerFacts) -> bool:
    return any(name.endswith("_scale") for name, _ in layer.arrays)


def _why_not_split(spec: RunSpec, plan: MeshPlan, facts: ModelFacts | None, knobs: Mapping[str, Scalar]) -> str | None:
    layout = plan.layout
    if layout.tensor == layout.context == layout.expert == 1:
        return None
    if facts is None and layout.context == layout.expert == 1:
        # What can be split of a user's model, a look at it and the run itself tell.
        return None
    if facts is None or not is_causal_transformer(facts):
        return _why_not_split_alone(spec, plan, facts, knobs)
    blocks = [layer for layer in facts.layers if layer.heads]
    return (
        _why_not_tensor(spec, layout.tensor, blocks)
        or _why_not_experts(spec, layout, blocks)
        or _why_not_sequence(layout, facts.input_elements)
        or _why_not_in_ring(spec, plan, facts.input_elements)
    )


def _why_not_split_alone(
    spec: RunSpec, plan: MeshPlan, facts: ModelFacts | None, knobs: Mapping[str, Scalar]
) -> str | None:
    """Why `tensor` cannot split a model that is no causal transformer, or does not go with the rest of its layout."""
    layout = plan.layout
    if facts is None or layout.context > 1 or layout.expert > 1:
        return (
            f"{spec.strategy} divides sequences and experts of causal transformers, and {spec.workload} is none that "
            f"it knows; use shard, replicate, tensor or pipeline"
        )
    if layout.pipeline > 1:
        return (
            f"{spec.strategy} splits stages of causal transformers only, and {spec.workload} is none that it knows; "
            f"leave pipeline or tensor out of the layout"
        )
    if spec.recompute != "none":
        return (
            f"{spec.strategy} does not compute split blocks of {spec.workload} again; "
            f"leave recompute out, or tensor out of the layout"
        )
    return why_not_split(spec, {**knobs, "tensor": layout.tensor}, lambda _spec: facts)


def _why_not_tensor(spec: RunSpec, ways: int, blocks: Sequence[LayerFacts]) -> str | None:
    for layer in blocks if ways > 1 else ():
        arrays = dict(layer.arrays)
        sizes = {
            f"{layer.heads} heads": layer.heads,
            f"{layer.kv_heads} heads of keys and values": layer.kv_heads,
            f"a width of {arrays['norm1_scale'][0]}": arrays["norm1_scale"][0],
        }
        if not layer.experts:
            # Experts stay whole: each rank has some positions of the sequence, and sends their vectors to them.
            sizes[f"a network of {arrays['up_kernel'][1]}"] = arrays["up_kernel"][1]
        for what, size in sizes.items():
            if size and size % ways:
                return f"{what} cannot be split over tensor={ways}; use a number that divides it"
    return None


def _why_not_experts(spec: RunSpec, layout: Layout, blocks: Sequence[LayerFacts]) -> str | None:
    ways = layout.expert
    if ways == 1:
        return None
    ranks = layout.holders * layout.tensor
    if ranks % ways:
        return (
            f"expert={ways} deals experts among the ranks of shard, context and tensor, of which there are {ranks}; "
            f"use a number that divides them"
        )
    experts = next((layer.experts for layer in blocks if layer.experts), 0)
    if not experts:
        return f"{spec.workload} has no experts to deal over expert={ways}; leave it out, or use a mixture of experts"
    if experts % ways:
        return f"{experts} experts cannot be dealt over expert={ways}; use a number that divides them"
    return None


def _why_not_sequence(layout: Layout, length: int) -> str | None:
    if length % layout.context:
        return (
            f"a sequence of {length} tokens does not divide over context={layout.context}; "
            f"use a number that divides it, or another sequence"
        )
    stretch = length // layout.context
    if stretch % layout.tensor:
        of_it = f"a stretch of {stretch}" if layout.context > 1 else f"a sequence of {length}"
        return (
            f"{of_it} tokens does not divide over tensor={layout.tensor}; "
            f"use a number that divides it, or another --input-shape"
        )
    return None


def is_causal_transformer(model: ModelFacts) -> bool:
    """Whether every layer is one of a causal transformer's, so that `tensor` divides the sequence too."""
    key = ("is_causal_transformer",)
    if key not in model.derived:
        layers = [layer for layer, _ in model.runs]
        model.derived[key] = any(layer.heads for layer in layers) and all(map(transformer_role, layers))
    return bool(model.derived[key])


def _why_not_in_ring(spec: RunSpec, plan: MeshPlan, length: int) -> str | None:
    multiple = plan.ring_multiple(spec.device)
    if not plan.in_ring or length % multiple == 0:
        return None
    return (
        f"attention in a ring over context={plan.layout.context} takes sequences of a multiple of {multiple} tokens, "
        f"and these have {length}; use attention=gathered, or another sequence"
    )


def transformer_role(layer: LayerFacts) -> str | None:
    """Which part of a causal transformer a layer is; None for layers that none of them has."""
    names = {name for name, _ in layer.arrays}
    if layer.heads:
        return "block" if layer.causal else None
    if layer.tied:
        return "head"
    for role, wanted in (("embed", "tokens"), ("norm", "scale"), ("head", "kernel")):
        if wanted in names:
            return role if layer.kind != "convolution" and "segments" not in names else None
    return None
