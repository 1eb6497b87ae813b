"""Why a layout does not fit a model, a batch or a schedule: checked before anything starts, said in sentences."""

from collections.abc import Mapping, Sequence

from paceline.costs.cuts import FactsOf, most_stages
from paceline.costs.footprint import ModelFacts
from paceline.costs.layers import LayerFacts
from paceline.costs.layouts import SPLIT_BACKWARD, MeshPlan, is_causal_transformer
from paceline.costs.splits import why_not_split
from paceline.layout import Layout
from paceline.spec import RunSpec, Scalar


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
    divided = [name for name in ("tensor", "expert", "context") if getattr(plan.layout, name) > 1]
    if not divided and spec.recompute == "none":
        return None
    # The compiler breaks such a block off where it deals vectors, and cannot go on with some that are under way.
    what = f"divided over {divided[0]}" if divided else f"computed again (recompute {spec.recompute})"
    return (
        f"blocks of {spec.workload} deal vectors to experts as their numbers say, which cannot be compiled where they "
        f"are {what}; use execution eager"
    )


def _why_not_scheduled(spec: RunSpec, plan: MeshPlan) -> str | None:
    ranks, count = plan.layout.pipeline, plan.microbatches
    if ranks > 1 and plan.reduce == "each":
        return (
            "a pipeline has whole gradients until all of its micro-batches are back, so that reduce=each would save "
            "nothing; leave it out, or pipeline out of the layout"
        )
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


def _why_not_in_ring(spec: RunSpec, plan: MeshPlan, length: int) -> str | None:
    multiple = plan.ring_multiple(spec.device)
    if not plan.in_ring or length % multiple == 0:
        return None
    return (
        f"attention in a ring over context={plan.layout.context} takes sequences of a multiple of {multiple} tokens, "
        f"and these have {length}; use attention=gathered, or another sequence"
    )
