"""The peak of a rank of a layout, put together from one traced step of the whole model on one device."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from paceline.costs.footprint import Footprint, ModelFacts, RankFootprint
from paceline.costs.layers import LayerFacts
from paceline.costs.layouts import MeshPlan
from paceline.costs.mesh_parts import Place, places_of, units_of
from paceline.costs.precision import (
    FLOAT_BYTES,
    Numbers,
    autocast_numbers,
    cast_numbers,
    compute_width,
    kept_bytes,
    parameter_width,
    reduction_width,
)
from paceline.costs.recompute import activation_bytes, recomputed_model
from paceline.costs.step_memory import LayerMemory, StepMemory
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
    part = group.parameter_bytes / (model.parameters * parameter_width(spec) or 1.0)
    static = group.parameter_bytes + group.optimizer_bytes + step.buffer_bytes + step.data_bytes + step.workspace_bytes
    gradients = step.gradient_bytes * part
    # Beside the gradients themselves: what a compression or a cast needs.
    static += max(0.0, group.gradient_bytes - group.parameter_bytes)
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
    layout, plan = plan.layout, plan.settled(model)
    places, stages = places_of(plan, model)
    memory = dict(zip((layer.name for layer in model.layers), step.layers, strict=False))
    ranks_each = footprint.ranks // layout.pipeline
    done, groups = 0, list[float]()
    for group in footprint.groups:
        place = places[done // ranks_each]
        stage = _StageMemory.of(spec, plan, place, memory, step)
        received = _received_bytes(spec, plan, place, stages)
        groups.append(received + _peak(spec, plan, place, group, stage, gathers_layers))
        done += group.ranks
    return groups


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
class _StageMemory:
    """Memory of a rank's layers while one micro-batch passes through them; the loss counts with the last layer."""

    layers: tuple[LayerMemory, ...]
    step: StepMemory

    @property
    def forward_share(self) -> float:
        """The highest forward-pass memory of a layer on this rank, as a share of the highest in the whole model."""
        here, anywhere = (max(layer.forward_bytes for layer in layers) for layers in (self.layers, self.step.layers))
        return min(1.0, here / (anywhere or 1.0))

    @classmethod
    def of(
        cls, spec: RunSpec, plan: MeshPlan, place: Place, memory: dict[str, LayerMemory], step: StepMemory
    ) -> "_StageMemory":
        last = plan.stages - 1 in place.stages
        shares = _kept_shares(spec, plan, place)
        layers = [_scaled(memory[layer.name], shares[layer.name]) for layer in place.whole.layers]
        if last:
            # Logits are in single precision where parameters are cast.
            logits = place.whole.layers[-1].output_elements * step.samples * FLOAT_BYTES / plan.layout.tensor
            layers.append(_with_more(_scaled(step.layers[-1], 1 / plan.layout.tensor), _more_logits(plan) * logits))
        return cls(tuple(layers), step)


def _more_logits(plan: MeshPlan) -> int:
    """How many arrays of the size of the logits exist beside those of the loss on one device.

    A loss over a split vocabulary makes one more. PyTorch's pipeline keeps the results of the last stage until its
    backward pass is done, and the stage has one more as the model of their shape.
    """
    return int(plan.layout.tensor > 1) + 2 * int(plan.layout.pipeline > 1)


def _with_more(layer: LayerMemory, nbytes: float) -> LayerMemory:
    return replace(layer, forward_bytes=layer.forward_bytes + nbytes, backward_bytes=layer.backward_bytes + nbytes)


def _kept_shares(spec: RunSpec, plan: MeshPlan, place: Place) -> dict[str, float]:
    """For each layer, the share of its single-device activations that a rank with a part of it keeps."""
    numbers, ways = cast_numbers(spec), plan.layout.tensor
    if ways == plan.layout.context == 1:
        return {layer.name: 1.0 for layer in place.whole.layers}
    whole = recomputed_model(place.whole, spec.recompute)
    part = recomputed_model(place.part, spec.recompute, ways)
    return {
        before.name: _kept(after, numbers) / (_kept(before, numbers) or 1.0)
        for before, after in zip(whole.layers, part.layers, strict=True)
    }


def _kept(layer: LayerFacts, numbers: Numbers) -> float:
    return float(kept_bytes(layer, numbers))


def _scaled(layer: LayerMemory, share: float) -> LayerMemory:
    names = ("kept_bytes", "forward_bytes", "backward_bytes")
    return replace(layer, **{name: getattr(layer, name) * share for name in names})


def _peak(
    spec: RunSpec, plan: MeshPlan, place: Place, group: RankFootprint, stage: _StageMemory, gathers_layers: bool
) -> float:
    units = units_of(plan, place.part)
    padded = {unit.layer: 0.0 for unit in units.values()}
    kept = dict(padded)
    for unit in units.values():
        padded[unit.layer] += unit.padded
        kept[unit.layer] += unit.padded / unit.holders
    moments = _Moments(spec, plan, place, stage, padded, kept, gathers_layers)
    step = stage.step
    static = step.buffer_bytes + step.data_bytes + step.workspace_bytes
    if not spec.offload:
        static += group.parameter_bytes + group.optimizer_bytes
    shards = 0.0 if spec.offload else group.parameter_bytes
    # An evaluation and an update find the shards of all gradients there.
    evaluation = step.evaluation_bytes / plan.layout.tensor * stage.forward_share
    return static + max(moments.most(), shards + evaluation, shards + step.update_bytes)


@dataclass(frozen=True)
class _Moments:
    spec: RunSpec
    plan: MeshPlan
    place: Place
    stage: _StageMemory
    # Numbers of each layer's parameters as they travel.
    padded: dict[str, float]
    # Of those, in the shards that a rank keeps.
    shards: dict[str, float]
    gathers_layers: bool

    def most(self) -> float:
        """The highest memory above the static part, over the passes of all micro-batches."""
        layers, waiting = self.stage.layers, self.plan.passes_kept(self.place.number)
        kept_before = (waiting - 1) * sum(layer.kept_bytes for layer in layers)
        most, below = 0.0, kept_before
        for number, layer in enumerate(layers):
            forward = below + layer.forward_bytes + self._gathered(number, forward=True)
            backward = below + layer.backward_bytes + self._gathered(number, forward=False) + self._gradients(number)
            most = max(most, forward, backward)
            below += layer.kept_bytes
        return most + self._stays()

    @property
    def _several(self) -> bool:
        """Whether gradients of several passes are accumulated unsharded."""
        return self.plan.layout.pipeline > 1 or self.plan.accumulation > 1

    @property
    def _stay_gathered(self) -> bool:
        """Whether parameters stay gathered during the whole step."""
        return self._several or not self.gathers_layers

    @cached_property
    def _divided(self) -> bool:
        """Whether a rank keeps a part of any layer's parameters."""
        return self.shards != self.padded

    @property
    def _copies(self) -> bool:
        """Whether gathered parameters are others than those that are held."""
        return self._divided or compute_width(self.spec) != parameter_width(self.spec)

    def _stays(self) -> float:
        numbers = sum(self.padded.values())
        gathered = numbers * compute_width(self.spec) if self._stay_gathered and self._copies else 0.0
        # Gradients of several passes are in the numbers in which they are reduced.
        return gathered + (numbers * reduction_width(self.spec) if self._several else 0.0)

    def _numbers(self, number: int) -> float:
        layers = self.stage.layers
        return self.padded.get(layers[number].layer, 0.0) if 0 <= number < len(layers) else 0.0

    def _shard_numbers(self, number: int) -> float:
        return self.shards.get(self.stage.layers[number].layer, 0.0)

    def _gathered(self, number: int, forward: bool) -> float:
        """Bytes of a layer's gathered parameters and of the next layer's, which are prefetched."""
        if self._stay_gathered or not self._copies:
            return 0.0
        following = self._numbers(number + 1 if forward else number - 1)
        return (self._numbers(number) + following) * compute_width(self.spec)

    def _gradients(self, number: int) -> float:
        """Bytes of gradients: shards of later layers, and the full gradients that are being reduce-scattered."""
        if self._several:
            return 0.0
        behind = sum(self._shard_numbers(place) for place in range(number + 1, len(self.stage.layers)))
        scattered = (self._numbers(number) + self._numbers(number + 1)) * reduction_width(self.spec)
        if not self._divided and reduction_width(self.spec) == compute_width(self.spec):
            scattered = 0.0
        return behind * parameter_width(self.spec) + scattered
