"""Bytes and seconds of a layout with its micro-batches and recomputation, in microseconds instead of milliseconds.

Memory is counted as the footprint of a composed layout counts it, small buffers aside. Seconds are those of the passes,
the bubble, and transfers that nothing can hide: less than a prediction, and close enough to say which layouts deserve
one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

from paceline.costs.cuts import cut_by_flops
from paceline.costs.footprint import ModelFacts, RankWork, optimizer_bytes
from paceline.costs.layers import LayerFacts
from paceline.costs.layouts import MeshPlan
from paceline.costs.mesh_parts import place_of
from paceline.costs.precision import cast_numbers, compute_width, kept_bytes, parameter_width, reduction_width
from paceline.costs.recompute import recomputed_model
from paceline.layout import Layout
from paceline.predict.compute import Passes
from paceline.predict.prediction import Predictor, transport_of
from paceline.predict.transfers import Costs
from paceline.spec import Execution, Recompute, RunSpec
from paceline.strategies import strategy

# Exchanges of a block that is split, in each direction, and those of computing it again.
BLOCK_EXCHANGES, BLOCK_EXCHANGES_AGAIN = 4, 3


@dataclass(frozen=True, slots=True)
class Setting:
    """A layout with its accumulation passes, recomputation, and stages per rank of the pipeline."""

    layout: Layout
    samples: int
    passes: int
    recompute: Recompute
    stages_per_worker: int = 1
    execution: Execution = "eager"
    # Rounds of a pipeline's schedule that the passes are made in.
    rounds: int = 1
    # Whether each of several passes reduces its gradients, so that none of them is whole between passes.
    reduces_each: bool = False

    @property
    def microbatch(self) -> float:
        """Samples of one pass, counted as whole sequences."""
        return self.samples / self.passes / self.layout.context


@dataclass(frozen=True)
class Sums:
    """Cumulative sums over layers: parameters, operations (also of blocks alone), bytes kept of one sample."""

    parameters: list[float]
    flops: list[float]
    block_flops: list[float]
    blocks: list[float]
    kept: dict[Recompute, list[float]]
    # The layer that has most beside what stays, while it is computed again.
    again: dict[Recompute, float]
    largest: float


class Screen:
    """Estimates settings of one strategy, for runs that differ in nothing else."""

    def __init__(self, predictor: Predictor, spec: RunSpec) -> None:
        """`spec` is any such run."""
        self.predictor, self.spec, self.model = predictor, spec, predictor.model
        self.chosen = strategy(spec.strategy)
        self._sums: dict[tuple[int, int], Sums] = {}
        self._edges: dict[int, list[int]] = {}
        self._runs: dict[Execution, RunSpec] = {}
        self._works: dict[tuple[float, bool, Recompute], RankWork] = {}
        self._held: dict[tuple[tuple[int, ...], Recompute], list[tuple[float, float]]] = {}
        self._shares: dict[tuple[int, ...], list[tuple[float, float, float]]] = {}
        self._fixed_transfers: dict[Layout, tuple[float, float]] = {}
        self._exchanges: dict[tuple[int, float], float] = {}

    @cached_property
    def costs(self) -> Costs:
        """Costs of transfers on the system."""
        return Costs(self.predictor.hardware, transport_of(self.chosen, self.spec))

    def held_bytes(self, setting: Setting) -> float:
        """Bytes held by the rank that holds most."""
        layout, sums = setting.layout, self._layer_sums(setting.layout)
        stays = layout.pipeline > 1 or (setting.passes > 1 and not setting.reduces_each)
        width, gathered = parameter_width(self.spec), compute_width(self.spec)
        state = 2 * width + optimizer_bytes(self.spec.optimizer, 1, 0, width) if not self.spec.offload else 0
        beside = reduction_width(self.spec) + (gathered if layout.holders > 1 or gathered != width else 0)
        plan = self._plan(setting) if layout.pipeline > 1 else None
        buffers = self._buffer_bytes(setting) if plan else 0.0
        most = 0.0
        for place, (parameters, kept) in enumerate(self._places(setting)):
            waiting = plan.passes_kept(place) if plan else 1
            activations = (kept * waiting + sums.again[setting.recompute]) * setting.microbatch
            held = parameters / layout.holders * state + (parameters if stays else sums.largest) * beside
            most = max(most, held + activations + buffers)
        return most

    def _buffer_bytes(self, setting: Setting) -> float:
        """Bytes of receive buffers of a pipeline rank: one per micro-batch of a round, in both directions."""
        layout = setting.layout
        block = self._block.output_elements * compute_width(self.spec) * setting.microbatch / layout.tensor
        # Of two places the first has one side only.
        sides = 2 * setting.stages_per_worker - (1 if layout.pipeline == 2 else 0)
        return sides * block * setting.passes / setting.rounds

    def step_seconds(self, setting: Setting) -> float:
        """Seconds of a step, without transfers that overlap with computation."""
        layout, sums = setting.layout, self._layer_sums(setting.layout)
        passes = self._passes(setting, "none")
        divided = layout.tensor * layout.context
        forward, backward = passes.forward_total / divided, passes.backward_total / divided
        again, asked_again = self._again_seconds(setting, passes)
        again /= divided
        # A host asks for a part of each layer as often as for all of it, for each block alike, and goes on meanwhile.
        host_forward, host_backward = sum(passes.host_forward), sum(passes.host_backward)
        host_backward += asked_again
        exchanged = self._exchange_seconds(setting)
        more = exchanged * (BLOCK_EXCHANGES + (BLOCK_EXCHANGES_AGAIN if setting.recompute == "full" else 0))
        gathered, scattered = self._transfers(layout)
        update = sums.parameters[-1] / layout.pipeline / layout.holders * passes.update_per_parameter
        shares = self._shares_of_work(setting)
        all_blocks, block_work = (sum(share[column] for share in shares) for column in (2, 1))
        places = [
            (
                max(forward * share + exchanged * BLOCK_EXCHANGES * blocks, host_forward * launches),
                max(backward * share + again * of_blocks / (block_work or 1) + more * blocks, host_backward * launches),
            )
            for share, of_blocks, blocks in shares
            for launches in (blocks / all_blocks if all_blocks else share,)
        ]
        if layout.pipeline == 1:
            computed = sum(places[0]) * setting.passes
            reductions = setting.passes if setting.reduces_each else 1
            return max(computed, gathered * (reductions + setting.passes) + scattered * reductions) + update
        slowest = max(places, key=sum)
        outside = max(0.0, gathered - slowest[0]) + max(0.0, scattered - slowest[1])
        # Every pass goes through the slowest rank, and the first of them through all others too.
        others = sum(map(sum, places)) - sum(slowest)
        waited = others / setting.stages_per_worker * setting.rounds
        return sum(slowest) * setting.passes + waited + outside + update

    def _passes(self, setting: Setting, recompute: Recompute) -> Passes:
        """Seconds of one pass through all layers."""
        work = self._work(setting.samples / setting.passes, setting.layout.holders > 1, recompute)
        return self.predictor.rank_passes(self.chosen, self._run(setting), work)

    def _again_seconds(self, setting: Setting, passes: Passes) -> tuple[float, float]:
        """Seconds of the device and of its host for what is computed again in one pass through all layers."""
        if setting.recompute == "none":
            return 0.0, 0.0
        if self.predictor.hardware.kind == "cpu" or self.predictor.traced is not None:
            # Operations by layer are known of built-in models on GPUs.
            blocks = sum(share for _, share, _ in self._shares_of_work(setting)) * (setting.recompute == "full")
            return passes.forward_total * blocks, sum(passes.host_forward) * blocks
        more = self._passes(setting, setting.recompute)
        device, host = more.backward_total - passes.backward_total, sum(more.host_backward) - sum(passes.host_backward)
        return max(0.0, device), max(0.0, host)

    def _work(self, samples: float, gathers: bool, recompute: Recompute) -> RankWork:
        """Work of one pass through all layers; cached by the number of samples."""
        key = samples, gathers, recompute
        if key not in self._works:
            self._works[key] = RankWork(self.model, samples, recompute=recompute, gathers=gathers)
        return self._works[key]

    def _run(self, setting: Setting) -> RunSpec:
        """An example run with this execution."""
        if setting.execution not in self._runs:
            self._runs[setting.execution] = self.spec.model_copy(update={"execution": setting.execution})
        return self._runs[setting.execution]

    @cached_property
    def _block(self) -> LayerFacts:
        return next((layer for layer in self.model.layers if layer.heads), self.model.layers[0])

    def _exchange_seconds(self, setting: Setting) -> float:
        """Seconds of one exchange between the tensor-parallel parts of a block."""
        ways, microbatch = setting.layout.tensor, setting.microbatch
        if ways == 1:
            return 0.0
        if (ways, microbatch) not in self._exchanges:
            payload = self._block.output_elements * compute_width(self.spec) * microbatch
            self._exchanges[ways, microbatch] = self.costs.seconds("all-gather", payload, ways)
        return self._exchanges[ways, microbatch]

    def _transfers(self, layout: Layout) -> tuple[float, float]:
        """Seconds to gather a rank's parameters once, and to reduce its gradients."""
        if layout not in self._fixed_transfers:
            parameters = self._layer_sums(layout).parameters[-1] / layout.pipeline
            apart, holders = layout.apart("context"), layout.holders
            gathered = self.costs.seconds("all-gather", parameters * compute_width(self.spec), holders, apart)
            reduced = parameters * reduction_width(self.spec)
            scattered = self.costs.seconds("reduce-scatter", reduced, holders, apart)
            summed = self.costs.seconds("all-reduce", reduced / holders, layout.replicate, layout.apart("replicate"))
            self._fixed_transfers[layout] = gathered, scattered + summed
        return self._fixed_transfers[layout]

    def _plan(self, setting: Setting) -> MeshPlan:
        pipeline = setting.layout.pipeline > 1
        return MeshPlan(
            setting.layout, setting.samples, microbatches=setting.passes // setting.rounds if pipeline else 1,
            accumulation=setting.rounds if pipeline else setting.passes,
            schedule="1f1b" if setting.stages_per_worker == 1 else "interleaved",
            stages_per_worker=setting.stages_per_worker,
        )  # fmt: skip

    def _places(self, setting: Setting) -> list[tuple[float, float]]:
        """For each pipeline position: a rank's parameters, and bytes that it keeps of one sample."""
        key = self._key(setting), setting.recompute
        if key not in self._held:
            sums = self._layer_sums(setting.layout)
            both = sums.parameters, sums.kept[setting.recompute]
            self._held[key] = [
                (_of(both[0], stretches), _of(both[1], stretches)) for stretches in self._stretches(setting)
            ]
        return self._held[key]

    def _shares_of_work(self, setting: Setting) -> list[tuple[float, float, float]]:
        """For each pipeline position: its share of all operations, the share of its blocks, and their number."""
        key = self._key(setting)
        if key not in self._shares:
            sums = self._layer_sums(setting.layout)
            flops = sums.flops[-1] or 1
            self._shares[key] = [
                (_of(sums.flops, stretch) / flops, _of(sums.block_flops, stretch) / flops, _of(sums.blocks, stretch))
                for stretch in self._stretches(setting)
            ]
        return self._shares[key]

    def _stretches(self, setting: Setting) -> list[list[tuple[int, int]]]:
        """For each pipeline position: (first layer, layer after the last) of each of its stages."""
        ranks, edges = setting.layout.pipeline, self._cut(setting.layout.pipeline * setting.stages_per_worker)
        stages = list(pairwise(edges))
        return [stages[place::ranks] for place in range(ranks)]

    def _key(self, setting: Setting) -> tuple[int, ...]:
        layout = setting.layout
        return layout.tensor, layout.context, layout.pipeline, setting.stages_per_worker

    def _cut(self, stages: int) -> list[int]:
        if stages not in self._edges:
            cut = cut_by_flops(self.model.layers, stages) if stages > 1 else (self.model.layers,)
            self._edges[stages] = [0, *accumulate(len(stage) for stage in cut)]
        return self._edges[stages]

    def _layer_sums(self, layout: Layout) -> Sums:
        """Cumulative sums over a rank's part of each layer."""
        key = layout.tensor, layout.context
        if key not in self._sums:
            plan = MeshPlan(Layout(tensor=layout.tensor, context=layout.context), 1)
            part = place_of(plan, 0, (self.model.layers,), self.model.input_elements).part
            self._sums[key] = self._sum(part, layout.tensor)
        return self._sums[key]

    def _sum(self, part: ModelFacts, ways: int) -> Sums:
        numbers = cast_numbers(self.spec)
        kept: dict[Recompute, list[float]] = {}
        again: dict[Recompute, float] = {}
        whole = [float(kept_bytes(layer, numbers)) for layer in part.layers]
        for way in RECOMPUTATION:
            less = [float(kept_bytes(layer, numbers)) for layer in recomputed_model(part, way, ways).layers]
            kept[way] = _before(less)
            again[way] = max(0.0, *(before - after for before, after in zip(whole, less, strict=True)))
        parameters = [float(layer.parameters) for layer in part.layers]
        flops = [float(layer.forward_flops) for layer in part.layers]
        blocks = [float(bool(layer.heads)) for layer in part.layers]
        of_blocks = [work * block for work, block in zip(flops, blocks, strict=True)]
        return Sums(
            _before(parameters), _before(flops), _before(of_blocks), _before(blocks), kept, again, max(parameters)
        )


# From what costs least time to what frees most.
RECOMPUTATION: tuple[Recompute, ...] = ("none", "selective", "full")


def _of(sums: Sequence[float], stretches: Sequence[tuple[int, int]]) -> float:
    return sum(sums[last] - sums[first] for first, last in stretches)


def _before(values: Sequence[float]) -> list[float]:
    return [0.0, *accumulate(values)]
