"""What a rank of a composed layout computes, sends and holds: pure numbers, for every layout that can be run.

Payloads were compared with those of PyTorch's own dispatcher (`tests/contract/test_torch_mesh_bytes.py`).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from paceline.costs.footprint import (
    FLOAT_BYTES,
    Footprint,
    ModelFacts,
    RankFootprint,
    RankWork,
    Stages,
    in_groups,
    optimizer_bytes,
)
from paceline.costs.layers import LayerFacts
from paceline.costs.layouts import MeshPlan, is_causal_transformer, transformer_role
from paceline.costs.mesh_parts import (
    EXPERTS,
    Place,
    copied_at_once,
    has_experts_apart,
    head_shape,
    held_by_ranks,
    keys_and_values,
    numbers_beside_experts,
    places_of,
    split_halves,
    stays_whole,
    summed_at_once,
    units_of,
    whole_at_once,
)
from paceline.costs.messages import (
    Message,
    Phase,
    all_gather,
    all_reduce,
    all_to_all,
    during,
    exchange,
    of_like_layers,
    scattered_reduction,
)
from paceline.costs.precision import cast_numbers, compute_width, parameter_width, reduction_width
from paceline.costs.recompute import activation_bytes, recomputes_around, step_flops
from paceline.costs.splits import made_again, tensor_messages
from paceline.costs.torch import Array
from paceline.spec import RunSpec

# Recomputing a block does not need the sum of its network: nothing of the backward pass depends on it. Where all of it
# is computed again from outside of what is compiled, it is made all the same.
BLOCK_SCATTERS_AGAIN = 1
# Of a loss over a split vocabulary: the largest logit, the sum of exponentials, and the target's.
LOSS_REDUCTIONS = 3
# Each rank tells how many vectors it sends to each expert, in eight bytes.
COUNTER_BYTES = 8


@dataclass(frozen=True)
class Crossing:
    """Bytes of one micro-batch that a stage sends to the next stage and receives from the previous one."""

    stage: int
    sent_bytes: float
    received_bytes: float


def mesh_footprint(spec: RunSpec, plan: MeshPlan, model: ModelFacts) -> Footprint:
    """What every rank computes, sends and holds, in mesh order: pipeline, replicate, shard, context, tensor."""
    layout, plan = plan.layout, plan.settled(model)
    places, stages = places_of(plan, model)
    ranks: list[RankFootprint] = []
    messages: tuple[Message, ...] = ()
    buffers, before = 0.0, None
    for place in places:
        # Places in the middle of a pipeline send what the one before them sends.
        if before is None or not place.alike(before, plan.stages):
            crossings = _crossings(spec, plan, place, stages)
            messages, buffers = _messages(spec, plan, place, crossings), _buffer_bytes(plan, crossings)
        before = place
        held_by = held_by_ranks(plan, place)
        copies = layout.replicate if len(held_by) == 1 else 1
        shards = [_rank(spec, plan, place, messages, count * copies, held, buffers) for count, held in held_by]
        ranks += shards * (layout.replicate // copies)
    apart = layout.apart("pipeline")
    turns = Stages(
        layout.pipeline, plan.microbatches, plan.schedule, plan.stages_per_worker, replicas=apart, apart=apart,
        accumulation=plan.accumulation,
        split=layout.tensor,
    )  # fmt: skip
    return in_groups(ranks, turns if layout.pipeline > 1 else None)


def _messages(spec: RunSpec, plan: MeshPlan, place: Place, crossings: Sequence[Crossing]) -> tuple[Message, ...]:
    layout = plan.layout
    return (
        *_between_stages(plan, crossings),
        *(_between_split_layers_once(spec, plan, place) if layout.tensor > 1 else ()),
        *(_layer_by_layer(_between_stretches, spec, plan, place) if layout.context > 1 else ()),
        *(_layer_by_layer(_between_experts, spec, plan, place) if layout.expert > 1 else ()),
        *_between_shards_once(spec, plan, place),
        *_between_copies_of_the_table(spec, plan, place),
        *_norm_of_gradients(spec, plan, place),
    )


def _layer_by_layer(
    messages_of: Callable[[RunSpec, MeshPlan, Place], list[Message]], spec: RunSpec, plan: MeshPlan, place: Place
) -> list[Message]:
    """Messages of all layers; neighbouring layers that differ only in their names are computed once."""
    like = place.like
    messages = messages_of(spec, plan, place.distinct)
    return [of_like_layers(message, like.get(message.layer, 1)) for message in messages]


def _rank(
    spec: RunSpec, plan: MeshPlan, place: Place, messages: tuple[Message, ...], ranks: int, held: int, buffers: float
) -> RankFootprint:
    layout, waiting, last = plan.layout, plan.passes_kept(place.number), plan.stages - 1
    width, gathered_width = parameter_width(spec), compute_width(spec)
    units = units_of(plan, place.part).values()
    samples = plan.stretch_microbatch * waiting
    kept = activation_bytes(place.part, spec.recompute, samples, layout.tensor, cast_numbers(spec), waiting)
    # Parameters that are cast are there beside the whole ones, as gathered ones are.
    copied = [unit for unit in units if max(layout.holders, unit.holders) > 1 or gathered_width != width]
    gathered = whole_at_once(plan, copied) * gathered_width
    return RankFootprint(
        role="worker",
        ranks=ranks,
        flops=step_flops(place.part, spec.recompute, plan.samples / layout.context),
        messages=messages,
        parameter_bytes=held * width,
        gradient_bytes=held * width + whole_at_once(plan, units) * reduction_width(spec),
        optimizer_bytes=optimizer_bytes(spec.optimizer, held, place.part.tensors, width),
        # Gathered parameters come and go within a step as activations do.
        activation_bytes=kept + gathered + buffers,
        work=RankWork(place.part, plan.stretch_microbatch, layout.tensor, spec.recompute, place.stages[-1] == last,
                      stretches=layout.tensor, gathers=layout.holders > 1,
                      context=1 if plan.attention == "ring" else layout.context),
    )  # fmt: skip


def _buffer_bytes(plan: MeshPlan, crossings: Sequence[Crossing]) -> float:
    """PyTorch keeps a buffer for each micro-batch that is received, of activations and of gradients."""
    return sum(crossing.sent_bytes + crossing.received_bytes for crossing in crossings) * plan.microbatches


def _crossings(spec: RunSpec, plan: MeshPlan, place: Place, stages: Sequence[Sequence[LayerFacts]]) -> list[Crossing]:
    """What each stage on a rank sends and receives; stages on the same rank exchange nothing."""
    scale = compute_width(spec) * plan.stretch_microbatch / plan.layout.tensor

    def crossing_bytes(before: int) -> float:
        if not 0 <= before < plan.stages - 1 or plan.holder(before) == plan.holder(before + 1):
            return 0.0
        return stages[before][-1].output_elements * scale

    return [Crossing(stage, crossing_bytes(stage), crossing_bytes(stage - 1)) for stage in place.stages]


def _between_stages(plan: MeshPlan, crossings: Sequence[Crossing]) -> list[Message]:
    """Activations go from stage to stage and their gradients come back, a micro-batch at a time."""
    messages, apart = list[Message](), plan.layout.apart("pipeline")
    for crossing in crossings:
        sent, received = crossing.sent_bytes, crossing.received_bytes
        if sent or received:
            messages += [
                exchange(f"activations of stage {crossing.stage}", sent, received, plan.passes, apart=apart),
                exchange(f"gradients of stage {crossing.stage}", received, sent, plan.passes, apart=apart),
            ]
    return messages


def _between_split_layers_once(spec: RunSpec, plan: MeshPlan, place: Place) -> list[Message]:
    """Messages within split layers, computed once: how other devices make copies and shards changes nothing."""
    around = recomputes_around(spec, plan.layout.tensor)
    numbers = compute_width(spec), reduction_width(spec), spec.device, spec.recompute, around
    key = ("split layers", plan.stretch_microbatch, plan.passes, plan.reduce, *numbers)
    return place.part.derive(key, lambda: _between_split_layers(spec, plan, place))


def _between_split_layers(spec: RunSpec, plan: MeshPlan, place: Place) -> list[Message]:
    """Messages of tensor parallelism: with sequence parallelism for causal transformers, without for others."""
    if plan.layout.tensor == 1 or plan.layout.pipeline > 1 or is_causal_transformer(place.whole):
        return _layer_by_layer(_between_parts, spec, plan, place)
    splits = plan.splits(place.whole)
    messages = list(tensor_messages(spec, splits, plan.layout.tensor, plan.microbatch, width=compute_width(spec)))
    if spec.recompute == "full":
        messages += made_again(splits, messages, around=recomputes_around(spec, plan.layout.tensor))
    return [replace(message, count=message.count * plan.passes) for message in messages]


def _between_parts(spec: RunSpec, plan: MeshPlan, place: Place) -> list[Message]:
    """With sequence parallelism, activations are gathered before each split product and reduce-scattered after it."""
    ways = plan.layout.tensor
    # Whole gradients of several passes are added up in the numbers in which they go between workers.
    whole_gradient_width = reduction_width(spec) if plan.adds_up_whole else compute_width(spec)
    messages: list[Message] = []
    for layer in place.whole.layers if ways > 1 else ():
        role, arrays = transformer_role(layer), dict(layer.arrays)
        output_bytes = layer.output_elements * compute_width(spec) * plan.stretch_microbatch
        if role == "head":
            width, vocabulary = head_shape(layer)
            input_bytes = output_bytes / vocabulary * width
            # Losses are in single precision.
            loss_bytes = layer.output_elements * FLOAT_BYTES * plan.stretch_microbatch / vocabulary
            messages += _passing(spec, plan, layer.name, "forward", input_bytes, gathers=1)
            messages += _passing(spec, plan, layer.name, "backward", input_bytes, scatters=1)
            losses = all_reduce(f"losses of {layer.name}", loss_bytes, ways)
            messages += during(losses, "forward", layer=layer.name, count=LOSS_REDUCTIONS * plan.passes)
        elif role == "embed":
            messages += _passing(spec, plan, layer.name, "forward", output_bytes, scatters=1)
            messages += _passing(spec, plan, layer.name, "backward", output_bytes, gathers=1)
        elif role == "block":
            again, halves = int(spec.recompute == "full"), split_halves(layer)
            scattered_again = halves if recomputes_around(spec, plan.layout.tensor) else BLOCK_SCATTERS_AGAIN
            gathers, scatters = halves * (1 + again), halves + scattered_again * again
            messages += _passing(spec, plan, layer.name, "forward", output_bytes, halves, halves)
            messages += _passing(spec, plan, layer.name, "backward", output_bytes, gathers, scatters)
        for name in (name for name in arrays if stays_whole(name, plan.layout)):
            payload = math.prod(arrays[name]) * whole_gradient_width
            summed = all_reduce(f"gradient of {layer.name} {name}", payload, ways, content="gradients")
            messages += during(summed, "backward", layer=layer.name, count=plan.reductions)
    return messages


def _passing(
    spec: RunSpec, plan: MeshPlan, name: str, phase: Phase, payload: float, gathers: int = 0, scatters: int = 0
) -> list[Message]:
    ways, messages = plan.layout.tensor, list[Message]()
    if gathers:
        gathered = all_gather(f"{phase} positions gathered for {name}", payload, ways)
        messages += during(gathered, phase, layer=name, count=gathers * plan.passes)
    if scatters:
        scattered = scattered_reduction(spec, f"{phase} sums of {name}", payload, ways)
        messages += during(scattered, phase, layer=name, count=scatters * plan.passes)
    return messages


def _between_stretches(spec: RunSpec, plan: MeshPlan, place: Place) -> list[Message]:
    """Context parallelism: each block gathers keys and values of the whole sequence and scatters their gradients."""
    layout, messages = plan.layout, list[Message]()
    again = int(spec.recompute == "full")
    for layer in place.whole.layers if layout.context > 1 else ():
        if layer.heads:
            payload = keys_and_values(layer) / layout.tensor * compute_width(spec) * plan.microbatch
            where = {"layer": layer.name, "apart": layout.apart("context")}
            if plan.attention == "ring":
                messages += _round_the_ring(spec, plan, layer)
                continue
            gathered = all_gather(f"keys and values for {layer.name}", payload, layout.context)
            scattered = scattered_reduction(
                spec, f"gradients of keys and values of {layer.name}", payload, layout.context
            )
            messages += during(gathered, "forward", count=plan.passes, **where)
            messages += during(gathered, "backward", count=again * plan.passes, **where) if again else ()
            messages += during(scattered, "backward", count=plan.passes, **where)
    return messages


def _round_the_ring(spec: RunSpec, plan: MeshPlan, layer: LayerFacts) -> list[Message]:
    """Ring attention: keys and values go around the ring in both passes, followed by their gradients."""
    ranks, numbers = plan.layout.context, keys_and_values(layer) / plan.layout.tensor * plan.stretch_microbatch
    # What selective recomputation keeps of a block are the results of attention, not what was sent for them.
    again = int(spec.recompute != "none")

    def turns(name: str, width: float, count: int, phase: Phase) -> tuple[Message, ...]:
        payload = numbers * width
        message = Message(f"{name} round for {layer.name}", "all-to-all", payload, payload, payload, ranks=ranks)
        # Only the attention of the same block hides it, which is too little to count on.
        return during(
            (message,), phase, count=count * plan.passes, layer=layer.name, apart=plan.layout.apart("context")
        )

    width, hops = compute_width(spec), ranks - 1
    return [
        *turns("keys and values sent", width, hops, "forward"),
        *turns("keys and values sent", width, hops * (1 + again), "backward"),
        # Added up in single precision on their way.
        *turns("gradients of keys and values sent", FLOAT_BYTES, ranks, "backward"),
    ]


def _between_experts(spec: RunSpec, plan: MeshPlan, place: Place) -> list[Message]:
    """Tokens travel to their experts and back in both passes, after an exchange of counts.

    As many as there would be if the router spread them evenly: only a run knows how it does.
    """
    layout, messages = plan.layout, list[Message]()
    again = int(spec.recompute == "full")
    for layer in place.whole.layers if layout.expert > 1 else ():
        if layer.experts:
            chosen = layer.output_elements * layer.chosen_experts / layout.tensor
            vectors = chosen * compute_width(spec) * plan.stretch_microbatch
            travels = all_to_all(f"vectors of {layer.name} to experts and back", vectors, layout.expert)
            counts = all_to_all(f"counts of {layer.name}", layer.experts * COUNTER_BYTES, layout.expert)
            where = {"layer": layer.name, "apart": layout.apart("expert")}
            messages += during(travels, "forward", count=2 * plan.passes, **where)
            messages += during(counts, "forward", count=plan.passes, **where)
            messages += during(travels, "backward", count=(2 + 2 * again) * plan.passes, **where)
            # They are told again too where vectors are kept.
            messages += during(counts, "backward", count=plan.passes, **where) if spec.recompute != "none" else ()
    return messages


def _between_copies_of_the_table(spec: RunSpec, plan: MeshPlan, place: Place) -> list[Message]:
    """Gradients of a tied embedding, summed between the first and last stage of a pipeline."""
    if plan.layout.pipeline == 1 or plan.holder(0) == plan.holder(plan.stages - 1):
        return []
    if not plan.tied or place.number not in (plan.holder(0), plan.holder(plan.stages - 1)):
        return []
    ends = [layer for layer in place.part.layers if layer.tied is not None or "tokens" in dict(layer.arrays)]
    if not ends:
        return []
    rows, width = dict(ends[0].arrays)["tokens"]
    shard = Array(rows, width).shard(plan.layout.holders, 0) * parameter_width(spec)
    apart = plan.layout.apart("pipeline") * (plan.layout.pipeline - 1)
    return [replace(exchange("gradients of the tied table", shard, shard), apart=apart, content="gradients")]


def _between_shards_once(spec: RunSpec, plan: MeshPlan, place: Place) -> list[Message]:
    """Messages between shards and copies, computed once for all batch sizes of a layout."""
    layout = plan.layout
    often = *plan.gathers, plan.reductions
    key = ("shards", layout.replicate, layout.shard, *often, spec.precision, spec.reduction, spec.device)

    def between_shards() -> list[Message]:
        messages = _layer_by_layer(_between_shards, spec, plan, place)
        at_once = copied_at_once(layout, numbers_beside_experts(layout, place.whole))
        return summed_at_once(messages, plan) if at_once else messages

    return place.part.derive(key, between_shards)


def _between_shards(spec: RunSpec, plan: MeshPlan, place: Place) -> list[Message]:
    """Parameters gathered, gradients scattered over the shards and summed over the copies, layer by layer."""
    layout = plan.layout
    early, late = plan.gathers
    messages: list[Message] = []
    for name, unit in units_of(plan, place.part).items():
        reduced = unit.padded * reduction_width(spec)
        gathered = all_gather(f"parameters of {name}", unit.padded * compute_width(spec), unit.holders)
        scattered = scattered_reduction(spec, f"gradients of {name}", reduced, unit.holders)
        summed = all_reduce(f"gradient shards of {name}", reduced / unit.holders, layout.replicate)
        where = {"hidden": True, "layer": unit.layer, "apart": unit.apart}
        reduced_in = {"count": plan.reductions, "passes": plan.reductions}
        messages += during(gathered, "forward", count=early, passes=early, **where)
        messages += during(gathered, "backward", count=late, passes=late, **where) if late else ()
        messages += during(scattered, "backward", **where, **reduced_in)
        messages += during(summed, "backward", **{**where, "apart": layout.apart("replicate")}, **reduced_in)
    return messages


def _norm_of_gradients(spec: RunSpec, plan: MeshPlan, place: Place) -> list[Message]:
    """The norm of each array over shards and tensor parts, then the total over the pipeline."""
    if spec.clip is None:
        return []
    layout = plan.layout
    # A tied head's copy counts once; experts' norms are of ranks of their own.
    copies = sum(layer.tied is not None for layer in place.part.layers) if layout.pipeline > 1 else 0
    apart = place.part.layers if has_experts_apart(layout) else ()
    dealt = sum(name.startswith(EXPERTS) for layer in apart for name, _ in layer.arrays)
    arrays = place.part.tensors - copies - dealt
    parts, channels = _split_arrays(plan, place, arrays)
    sizes = [
        ("shards", arrays, layout.holders, layout.apart("context")),
        ("parts", parts, layout.tensor, 1),
        ("parts of convolutions", int(channels), layout.tensor, 1),
        ("shards of experts", dealt, layout.expert_holders, layout.expert),
        ("experts", int(layout.expert > 1), layout.expert, layout.apart("expert")),
        ("the pipeline", 1, layout.pipeline, layout.apart("pipeline")),
    ]
    return [
        message
        for name, count, ranks, apart in sizes
        if count
        for message in during(
            all_reduce(f"norm of gradients over {name}", count * FLOAT_BYTES, ranks), "update", apart=apart
        )
    ]


def _split_arrays(plan: MeshPlan, place: Place, arrays: int) -> tuple[int, bool]:
    """How many of the arrays are tensor-parallel DTensors, and whether convolutions are split as well."""
    if plan.layout.pipeline > 1 or is_causal_transformer(place.whole):
        return arrays, False
    splits = plan.splits(place.whole)
    divided = sum(split.divided_arrays for split in splits if split.part != "channels")
    return divided, any(split.part == "channels" for split in splits)
