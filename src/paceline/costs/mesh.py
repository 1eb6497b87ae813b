"""What a rank of a composed layout computes, sends and holds: pure numbers, for every layout that can be run.

Payloads were compared with those of PyTorch's own dispatcher (`tests/contract/test_torch_mesh_bytes.py`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from paceline.costs.cuts import cut_by_flops
from paceline.costs.footprint import (
    FLOAT_BYTES,
    Footprint,
    ModelFacts,
    RankFootprint,
    Stages,
    in_groups,
    optimizer_bytes,
)
from paceline.costs.layers import LayerFacts
from paceline.costs.layouts import MeshPlan, transformer_role
from paceline.costs.messages import Message, Phase, all_gather, all_reduce, during, exchange, scattered_reduction
from paceline.costs.precision import cast_numbers, compute_width, parameter_width, reduction_width
from paceline.costs.recompute import activation_bytes, step_flops
from paceline.costs.torch import Array, arrays_of, shard_runs
from paceline.spec import RunSpec

# In the forward pass of a block split over ranks: inputs gathered, sums scattered; the backward pass has as many.
BLOCK_GATHERS, BLOCK_SCATTERS = 2, 2
# Recomputing a block does not need its second sum: nothing of the backward pass depends on it.
BLOCK_SCATTERS_AGAIN = 1
# Of a loss over a split vocabulary: the largest logit, the sum of exponentials, and the target's.
LOSS_REDUCTIONS = 3
# Arrays of a layer that are whole on every rank: each has its part of their gradient.
_WHOLE_ARRAYS = ("norm1_scale", "norm1_shift", "norm2_scale", "norm2_shift", "scale", "shift")
_COLUMNS = ("qkv_kernel", "qkv_bias", "up_kernel", "up_bias", "kernel", "bias")
_ROWS = ("out_kernel", "down_kernel", "tokens", "positions")


@dataclass(frozen=True)
class Place:
    """One place in the pipeline: its stages of the whole model, and a rank's part of them."""

    number: int
    stages: tuple[int, ...]
    whole: ModelFacts
    part: ModelFacts


@dataclass(frozen=True)
class Crossing:
    """Bytes of one micro-batch that a stage sends on to the next and is given by the one before."""

    stage: int
    sent_bytes: float
    received_bytes: float


def mesh_footprint(spec: RunSpec, plan: MeshPlan, model: ModelFacts) -> Footprint:
    """Every rank, in the order of the mesh: pipeline, replicate, shard, tensor."""
    layout = plan.layout
    stages = cut_by_flops(model.layers, plan.stages) if layout.pipeline > 1 else (model.layers,)
    ranks: list[RankFootprint] = []
    for number in range(layout.pipeline):
        place = _place(plan, number, stages, model.input_elements)
        arrays = arrays_of(place.part.layers)
        crossings = _crossings(spec, plan, number, stages)
        messages = (
            *_between_stages(plan, crossings),
            *_between_parts(spec, plan, place),
            *_between_shards(spec, plan, place),
            *_norm_of_gradients(spec, plan, place),
        )
        buffers = _buffer_bytes(plan, crossings)
        shards = [
            _rank(spec, plan, place, messages, count * layout.tensor, held, buffers)
            for count, held in shard_runs(arrays, layout.shard)
        ]
        ranks += shards * layout.replicate
    apart = layout.apart("pipeline")
    turns = Stages(
        layout.pipeline, plan.microbatches, plan.schedule, plan.stages_per_worker, replicas=apart, apart=apart,
        accumulation=plan.accumulation,
        split=layout.tensor,
    )  # fmt: skip
    return in_groups(ranks, turns if layout.pipeline > 1 else None)


def _place(plan: MeshPlan, number: int, stages: Sequence[Sequence[LayerFacts]], input_elements: int) -> Place:
    held = plan.held_stages(number)
    layers = tuple(layer for stage in held for layer in stages[stage])
    # Only the first stage reads the samples themselves; what others receive is in their buffers.
    read = input_elements if held[0] == 0 else 0
    part = tuple(_split(layer, plan.layout.tensor) for layer in layers)
    return Place(number, held, ModelFacts(layers, read), ModelFacts(part, read))


def _split(layer: LayerFacts, ways: int) -> LayerFacts:
    """A rank's part of a layer: sizes that do not divide are those of the first rank, which has most."""
    if ways == 1:
        return layer
    arrays = tuple((name, _shape(name, shape, ways)) for name, shape in layer.arrays)
    role = transformer_role(layer)
    kept = math.ceil(layer.kept / ways)
    if role == "block":
        # What both norms give is kept as it was gathered, by the products that take it.
        kept += 2 * layer.output_elements - 2 * layer.output_elements // ways
    elif role == "dense":
        kept += layer.output_elements // dict(layer.arrays)["kernel"][1] * dict(layer.arrays)["kernel"][0]
    return replace(
        layer,
        arrays=arrays,
        parameters=sum(math.prod(shape) for _, shape in arrays),
        forward_flops=layer.forward_flops // ways,
        kept_elements=kept,
        single_elements=math.ceil(layer.single_elements / ways),
        summed_elements=math.ceil(layer.summed_elements / ways),
    )


def _shape(name: str, shape: tuple[int, ...], ways: int) -> tuple[int, ...]:
    if name in _COLUMNS:
        return (*shape[:-1], math.ceil(shape[-1] / ways))
    return (math.ceil(shape[0] / ways), *shape[1:]) if name in _ROWS else shape


def _rank(
    spec: RunSpec, plan: MeshPlan, place: Place, messages: tuple[Message, ...], ranks: int, held: int, buffers: float
) -> RankFootprint:
    layout, samples = plan.layout, plan.microbatch * plan.passes_kept(place.number)
    width, gathered_width = parameter_width(spec), compute_width(spec)
    whole = [sum(array.padded(layout.shard) for array in unit) for unit in _units(place.part).values()]
    # A pipeline's stages, and a model between the passes of a step, stay gathered and keep whole gradients.
    stays = layout.pipeline > 1 or plan.accumulation > 1
    beside = sum(whole) if stays else max(whole, default=0)
    kept = activation_bytes(place.part, spec.recompute, samples, layout.tensor, cast_numbers(spec))
    # Parameters that are cast are there beside the whole ones, as gathered ones are.
    gathered = beside * gathered_width if layout.shard > 1 or gathered_width != width else 0
    return RankFootprint(
        role="worker",
        ranks=ranks,
        flops=step_flops(place.part, spec.recompute, plan.samples),
        messages=messages,
        parameter_bytes=held * width,
        gradient_bytes=held * width + beside * reduction_width(spec),
        optimizer_bytes=optimizer_bytes(spec.optimizer, held, place.part.tensors, width),
        # Gathered parameters come and go within a step as activations do.
        activation_bytes=kept + gathered + buffers,
    )


def _units(model: ModelFacts) -> dict[str, list[Array]]:
    """The parameters that FSDP gathers together: those of a layer, by its name."""
    return {layer.name: arrays_of([layer]) for layer in model.layers if layer.parameters}


def _buffer_bytes(plan: MeshPlan, crossings: Sequence[Crossing]) -> float:
    """PyTorch keeps a buffer for each micro-batch that is received, of activations and of gradients."""
    return sum(crossing.sent_bytes + crossing.received_bytes for crossing in crossings) * plan.microbatches


def _crossings(spec: RunSpec, plan: MeshPlan, number: int, stages: Sequence[Sequence[LayerFacts]]) -> list[Crossing]:
    """What each stage of a place sends on and is given; neighbours on the same rank send nothing."""
    scale = compute_width(spec) * plan.microbatch / plan.layout.tensor

    def crossing_bytes(before: int) -> float:
        if not 0 <= before < plan.stages - 1 or plan.holder(before) == plan.holder(before + 1):
            return 0.0
        return stages[before][-1].output_elements * scale

    return [Crossing(stage, crossing_bytes(stage), crossing_bytes(stage - 1)) for stage in plan.held_stages(number)]


def _between_stages(plan: MeshPlan, crossings: Sequence[Crossing]) -> list[Message]:
    """Activations go from stage to stage and their gradients come back, a micro-batch at a time."""
    messages = []
    for crossing in crossings:
        sent, received = crossing.sent_bytes, crossing.received_bytes
        if sent or received:
            messages += [
                exchange(f"activations of stage {crossing.stage}", sent, received, plan.passes),
                exchange(f"gradients of stage {crossing.stage}", received, sent, plan.passes),
            ]
    return [replace(message, apart=plan.layout.apart("pipeline")) for message in messages]


def _between_parts(spec: RunSpec, plan: MeshPlan, place: Place) -> list[Message]:
    """Positions of the sequence are gathered before a split product and scattered after it, in every pass."""
    ways = plan.layout.tensor
    # Gradients of several passes are added up in the numbers in which they go between workers.
    several = plan.layout.pipeline > 1 or plan.passes > 1
    whole_gradient_width = reduction_width(spec) if several else compute_width(spec)
    messages: list[Message] = []
    for layer in place.whole.layers if ways > 1 else ():
        role, arrays = transformer_role(layer), dict(layer.arrays)
        output_bytes = layer.output_elements * compute_width(spec) * plan.microbatch
        if role == "dense":
            width, vocabulary = arrays["kernel"]
            input_bytes = output_bytes / vocabulary * width
            # Losses are in single precision.
            loss_bytes = layer.output_elements * FLOAT_BYTES * plan.microbatch / vocabulary
            messages += _passing(spec, plan, layer.name, "forward", input_bytes, gathers=1)
            messages += _passing(spec, plan, layer.name, "backward", input_bytes, scatters=1)
            losses = all_reduce(f"losses of {layer.name}", loss_bytes, ways)
            messages += during(losses, "forward", layer=layer.name, count=LOSS_REDUCTIONS * plan.passes)
        elif role == "embed":
            messages += _passing(spec, plan, layer.name, "forward", output_bytes, scatters=1)
            messages += _passing(spec, plan, layer.name, "backward", output_bytes, gathers=1)
        elif role == "block":
            again = int(spec.recompute == "full")
            gathers, scatters = BLOCK_GATHERS * (1 + again), BLOCK_SCATTERS + BLOCK_SCATTERS_AGAIN * again
            messages += _passing(spec, plan, layer.name, "forward", output_bytes, BLOCK_GATHERS, BLOCK_SCATTERS)
            messages += _passing(spec, plan, layer.name, "backward", output_bytes, gathers, scatters)
        for name in (name for name in arrays if name in _WHOLE_ARRAYS):
            payload = math.prod(arrays[name]) * whole_gradient_width
            messages += during(
                all_reduce(f"gradient of {layer.name} {name}", payload, ways), "backward", layer=layer.name
            )
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


def _between_shards(spec: RunSpec, plan: MeshPlan, place: Place) -> list[Message]:
    """Parameters gathered, gradients scattered over the shards and summed over the copies, layer by layer."""
    layout = plan.layout
    early, late = plan.gathers
    messages: list[Message] = []
    for name, unit in _units(place.part).items():
        numbers = sum(array.padded(layout.shard) for array in unit)
        reduced = numbers * reduction_width(spec)
        gathered = all_gather(f"parameters of {name}", numbers * compute_width(spec), layout.shard)
        scattered = scattered_reduction(spec, f"gradients of {name}", reduced, layout.shard)
        summed = all_reduce(f"gradient shards of {name}", reduced / layout.shard, layout.replicate)
        where = {"hidden": True, "layer": name, "apart": layout.apart("shard")}
        messages += during(gathered, "forward", count=early, **where)
        messages += during(gathered, "backward", count=late, **where) if late else ()
        messages += during(scattered, "backward", **where)
        messages += during(summed, "backward", **{**where, "apart": layout.apart("replicate")})
    return messages


def _norm_of_gradients(spec: RunSpec, plan: MeshPlan, place: Place) -> list[Message]:
    """The norm of each array over shards and parts, then the whole norm over the pipeline."""
    if spec.clip is None:
        return []
    sizes = {"shard": place.part.tensors, "tensor": place.part.tensors, "pipeline": 1}
    return [
        message
        for name, count in sizes.items()
        for message in during(
            all_reduce(f"norm of gradients over {name}", count * FLOAT_BYTES, getattr(plan.layout, name)),
            "update",
            apart=plan.layout.apart(name),
        )
    ]
