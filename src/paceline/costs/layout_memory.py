"""The peak of a rank of a layout, put together from one traced step of the whole model on one device."""

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.costs.footprint import Footprint, ModelFacts, RankFootprint
from paceline.costs.layers import LayerFacts
from paceline.costs.layouts import MeshPlan
from paceline.costs.mesh_parts import Place, places_of, units_of
from paceline.costs.precision import (
    FLOAT_BYTES,
    autocast_numbers,
    cast_numbers,
    compute_width,
    kept_bytes,
    parameter_width,
    reduction_width,
)
from paceline.costs.recompute import activation_bytes, recomputed_model
from paceline.costs.step_memory import StepMemory
from paceline.spec import RunSpec


def whole_model_peaks(
    spec: RunSpec, model: ModelFacts, footprint: Footprint, step: StepMemory, buckets: int = 0
) -> list[float]:
    """Peak memory of each group of ranks that compute every layer, or a part of every layer.

    What stays is the rank's own; what comes and goes is traced, as much of it as the rank has of all activations.
    Gradients may have a place of their own, in `buckets` as large as all of them, which stay.
    """
    return [_whole_model_peak(spec, model, group, step, buckets) for group in footprint.groups]


def _whole_model_peak(spec: RunSpec, model: ModelFacts, group: RankFootprint, step: StepMemory, buckets: int) -> float:
    counted = activation_bytes(model, spec.recompute, step.samples, numbers=autocast_numbers(spec))
    share = group.activation_bytes / counted if counted else 1.0
    # Passes that wait for their way back keep what they need for it; one at a time makes more than that.
    share, waiting = min(1.0, share), max(0.0, share - 1) * step.kept_bytes
    part = group.parameter_bytes / (model.unfrozen.parameters * parameter_width(spec) or 1.0)
    static = group.parameter_bytes + group.optimizer_bytes + step.buffer_bytes + step.data_bytes + step.workspace_bytes
    gradients = step.gradient_bytes * part
    # Beside the gradients themselves: what a compression or a cast needs.
    static += max(0.0, group.gradient_bytes - group.parameter_bytes * model.trained_share)
    after = gradients + max(step.evaluation_bytes * share, step.update_bytes * part)
    if buckets:
        return static + max(buckets * gradients + step.passing_beside_gradients * share + waiting, after)
    if spec.accumulation > 1:
        return static + max(gradients + step.passing_beside_gradients * share + waiting, after)
    return static + max(step.passing_bytes * share + waiting, after)


def mesh_peaks(
    spec: RunSpec,
    plan: MeshPlan,
    model: ModelFacts,
    footprint: Footprint,
    step: StepMemory,
    gathers_layers: bool = True,
) -> list[float]:
    """Peak memory of each group of ranks of a composed layout, in the order of the footprint.

    The step is one micro-batch through the model with its parameters cast; `gathers_layers` is whether layers are
    gathered one by one and divided again after each pass.
    """
    plan = plan.settled(model)
    places, stages = places_of(plan, model)
    ranks_each = footprint.ranks // plan.layout.pipeline
    done, peaks, passing = 0, list[float](), dict[int, _Passing]()
    for group in footprint.groups:
        number = done // ranks_each
        if number not in passing:
            place = places[number]
            layers = _layer_bytes(spec, plan, model, place, step)
            most = _most_in_passes(spec, plan, place, layers, gathers_layers)
            passing[number] = _Passing(_received_bytes(spec, plan, place, stages), most, max(layers.forward))
        peaks.append(_peak(spec, plan, group, passing[number], step, model.trained_share))
        done += group.ranks
    return peaks


def _received_bytes(spec: RunSpec, plan: MeshPlan, place: Place, stages: Sequence[Sequence[LayerFacts]]) -> float:
    """Bytes of receive buffers: PyTorch allocates one for every micro-batch that a stage receives."""
    received = [
        stages[stage - 1][-1].output_elements
        for stage in place.stages
        if stage and plan.holder(stage - 1) != plan.holder(stage)
    ]
    width = compute_width(spec) * plan.stretch_microbatch / plan.layout.tensor
    return sum(received) * width * plan.microbatches


@dataclass(frozen=True)
class _Passing:
    """What comes and goes on a rank: room for what it receives, the most in its passes, and in a forward pass."""

    received: float
    most: float
    forward: float


@dataclass(frozen=True)
class _LayerBytes:
    """Bytes of a rank's layers as one micro-batch goes through them, the loss as the last of them where it is there."""

    kept: list[float]
    forward: list[float]
    backward: list[float]


def _layer_bytes(spec: RunSpec, plan: MeshPlan, model: ModelFacts, place: Place, step: StepMemory) -> _LayerBytes:
    numbers, shares = _layer_numbers(model, place), _kept_shares(spec, plan, place)
    kept, forward, backward = (
        [column[number] * share for number, share in zip(numbers, shares, strict=True)] for column in step.columns
    )
    if plan.stages - 1 in place.stages:
        loss, share = step.layers[-1], 1 / plan.layout.tensor
        # Logits are in single precision where parameters are cast.
        logits = place.whole.layers[-1].output_elements * step.samples * FLOAT_BYTES / plan.layout.tensor
        more = _more_logits(plan) * logits
        kept.append(loss.kept_bytes * share)
        forward.append(loss.forward_bytes * share + more)
        backward.append(loss.backward_bytes * share + more)
    return _LayerBytes(kept, forward, backward)


def _layer_numbers(model: ModelFacts, place: Place) -> list[int]:
    """Where the layers of a place stand among those of the model."""

    def numbers() -> list[int]:
        by_name = {layer.name: number for number, layer in enumerate(model.layers)}
        return [by_name[layer.name] for layer in place.whole.layers]

    return place.whole.derive(("numbers of layers",), numbers)


def _more_logits(plan: MeshPlan) -> int:
    """How many arrays of the size of the logits exist beside those of the loss on one device.

    A loss over a split vocabulary makes one more. PyTorch's pipeline keeps the results of the last stage until its
    backward pass is done, and the stage has one more as the model of their shape.
    """
    return int(plan.layout.tensor > 1) + 2 * int(plan.layout.pipeline > 1)


def _kept_shares(spec: RunSpec, plan: MeshPlan, place: Place) -> list[float]:
    """The share of each layer's kept activations on one device that a rank with a part of the layer keeps."""
    numbers, ways = cast_numbers(spec), plan.layout.tensor
    if ways == plan.layout.context == 1:
        return [1.0] * len(place.whole.layers)

    def shares() -> list[float]:
        whole = recomputed_model(place.whole, spec.recompute)
        part = recomputed_model(place.part, spec.recompute, ways)
        return [
            float(kept_bytes(after, numbers)) / (float(kept_bytes(before, numbers)) or 1.0)
            for before, after in zip(whole.layers, part.layers, strict=True)
        ]

    return place.part.derive(("kept shares", spec.recompute, numbers, ways), shares)


def _peak(
    spec: RunSpec, plan: MeshPlan, group: RankFootprint, passing: _Passing, step: StepMemory, trained_share: float
) -> float:
    static = step.buffer_bytes + step.data_bytes + step.workspace_bytes
    if not spec.offload:
        static += group.parameter_bytes + group.optimizer_bytes
    shards = 0.0 if spec.offload else group.parameter_bytes * trained_share
    # An evaluation and an update find the shards of all gradients there; a stage makes a part of the evaluation.
    share = min(1.0, passing.forward / (max(step.columns[1]) or 1.0))
    evaluation = step.evaluation_bytes / plan.layout.tensor * share
    return passing.received + (static + max(passing.most, shards + evaluation, shards + step.update_bytes))


def _most_in_passes(spec: RunSpec, plan: MeshPlan, place: Place, layers: _LayerBytes, gathers_layers: bool) -> float:
    """The most in the passes of all micro-batches over what stays."""
    travelling = _travelling_numbers(plan, place)
    # Where gradients of several passes are added up whole, parameters stay gathered for all of a step.
    several = plan.adds_up_whole
    stay_gathered = several or not gathers_layers
    reduced, shards = _trained_numbers(plan, place)
    divided = _shard_numbers(plan, place) != travelling
    # Gathered parameters may be the very ones that are held.
    copies = divided or compute_width(spec) != parameter_width(spec) or spec.offload
    width = compute_width(spec) if copies else 0
    below = (plan.passes_kept(place.number) - 1) * sum(layers.kept)
    if several:
        passing = _most_beside_gradients(below, layers)
    else:
        gathered = [0.0] * len(travelling) if stay_gathered else [numbers * width for numbers in travelling]
        # Gradients that are reduced may go to the host's memory.
        kept = [0.0] * len(shards) if spec.offload else shards
        earlier = kept if plan.reductions > 1 else [0.0] * len(shards)
        passing = _most_with_gradients(spec, below, layers, _Units(reduced, kept, gathered, earlier))
    all_numbers = sum(travelling)
    # Gradients of several passes are in the numbers in which they are reduced.
    sums = sum(reduced) * reduction_width(spec) if several else 0.0
    return passing + ((all_numbers * width if stay_gathered else 0.0) + sums)


def _travelling_numbers(plan: MeshPlan, place: Place) -> list[float]:
    """Numbers of each layer's parameters as they are gathered; the loss has none."""
    return _unit_numbers(plan, place, place.part.unfrozen)[0]


def _shard_numbers(plan: MeshPlan, place: Place) -> list[float]:
    """Numbers of each layer's parameters in the shards that a rank keeps."""
    return _unit_numbers(plan, place, place.part.unfrozen)[1]


def _trained_numbers(plan: MeshPlan, place: Place) -> tuple[list[float], list[float]]:
    """Numbers of each layer's gradients as they are reduced, and in the shards that a rank keeps."""
    return _unit_numbers(plan, place, place.part)


def _unit_numbers(plan: MeshPlan, place: Place, model: ModelFacts) -> tuple[list[float], list[float]]:
    layers = model.layers

    def numbers() -> tuple[list[float], list[float]]:
        padded, kept = ({layer.name: 0.0 for layer in layers} for _ in range(2))
        for unit in units_of(plan, model).values():
            padded[unit.layer] += unit.padded
            kept[unit.layer] += unit.padded / unit.holders
        loss = [0.0] if plan.stages - 1 in place.stages else []
        return [*(padded[layer.name] for layer in layers), *loss], [*(kept[layer.name] for layer in layers), *loss]

    return model.derive(("numbers of units", plan.layout.holders, plan.layout.expert), numbers)


def _most_beside_gradients(below: float, layers: _LayerBytes) -> float:
    """Most bytes at any moment of both passes, where all gradients and parameters stay in memory."""
    most = 0.0
    for kept, forward, backward in zip(layers.kept, layers.forward, layers.backward, strict=True):
        most = max(most, below + forward, below + backward)
        below += kept
    return most


@dataclass(frozen=True)
class _Units:
    """Columns over layers: numbers of gradients that travel and in shards, bytes gathered, those of earlier passes."""

    travelling: list[float]
    shards: list[float]
    gathered: list[float]
    earlier: list[float]


def _most_with_gradients(spec: RunSpec, below: float, layers: _LayerBytes, units: _Units) -> float:
    """The highest memory where gradients are scattered layer by layer, and parameters may be gathered so.

    Shards of the gradients of earlier passes are there all the time; those of this pass are added to them.
    """
    travelling, shards, gathered, reduced = units.travelling, units.shards, units.gathered, reduction_width(spec)
    if shards == travelling and reduced == compute_width(spec):
        reduced = 0
    earlier = sum(units.earlier) * parameter_width(spec)
    most, behind, last = 0.0, 0.0 if earlier else sum(shards), len(travelling) - 1
    for number, kept in enumerate(layers.kept):
        # A layer's own parameters, and those of the next one, which are prefetched.
        following = gathered[number + 1] if number < last else 0.0
        preceding = gathered[number - 1] if number else 0.0
        forward = below + layers.forward[number] + (gathered[number] + following)
        # Shards of later layers, and what is being scattered of the layer and of the one behind it.
        behind = shards[number] if earlier else behind - shards[number]
        scattered = (travelling[number] + (travelling[number + 1] if number < last else 0.0)) * reduced
        backward = below + layers.backward[number] + (gathered[number] + preceding)
        most = max(most, forward, backward + (behind * parameter_width(spec) + scattered))
        below += kept
    return most + earlier
