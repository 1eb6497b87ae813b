"""How a sequence of layers is cut into stages for the workers of a pipeline, and what each worker then costs.

What runs and what a footprint counts are cut by the same function, so that they agree.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Literal, cast

from paceline.costs.footprint import (
    FLOAT_BYTES,
    Footprint,
    ModelFacts,
    RankFootprint,
    RankWork,
    Stages,
    in_groups,
    trainer,
)
from paceline.costs.layers import LayerFacts
from paceline.costs.messages import Message, exchange
from paceline.costs.precision import Numbers, autocast_copies
from paceline.costs.recompute import most_again, recomputed_model, step_flops
from paceline.spec import RunSpec, Scalar
from paceline.units import format_count

Schedule = Literal["gpipe", "1f1b", "interleaved"]
# Counts of a built-in model as a run trains it.
FactsOf = Callable[[RunSpec], ModelFacts]


def cut(costs: Sequence[float], trainable: Sequence[bool], count: int) -> tuple[range, ...]:
    """Cuts layers into `count` stages so that the heaviest is as light as possible, and the others as even as possible.

    Each has a layer, and the first one with parameters, as there must be something to send gradients back for.
    """
    head = _head(trainable)
    if count > len(costs) - head:
        raise ValueError(f"{format_count(len(costs) - head, 'layer')} cannot be cut into {count} stages")
    joined = [sum(costs[: head + 1]), *costs[head + 1 :]]
    sums = [0.0, *accumulate(joined)]
    ends = _most_even(sums, count, _least_heaviest(sums, count))
    edges = [0, *(end + head for end in ends)]
    return tuple(range(edges[stage], edges[stage + 1]) for stage in range(count))


def most_stages(trainable: Sequence[bool]) -> int:
    """The most stages that `cut` can make of layers, given which of them have parameters."""
    return len(trainable) - _head(trainable)


def _head(trainable: Sequence[bool]) -> int:
    return next((index for index, has_parameters in enumerate(trainable) if has_parameters), 0)


def _least_heaviest(sums: Sequence[float], parts: int) -> float:
    """The lowest cost that the heaviest stage can have when layers are cut into `parts` stages."""
    stretches = sorted({sums[end] - sums[start] for end in range(1, len(sums)) for start in range(end)})
    return stretches[bisect_left(stretches, True, key=lambda most: _fewest_parts(sums, most) <= parts)]


def _fewest_parts(sums: Sequence[float], most: float) -> float:
    """The fewest stages into which layers can be cut when no stage may cost more than `most`."""
    parts, start = 1, 0
    for end in range(1, len(sums)):
        if sums[end] - sums[end - 1] > most:
            return float("inf")
        if sums[end] - sums[start] > most:
            parts, start = parts + 1, end - 1
    return parts


def _most_even(sums: Sequence[float], parts: int, most: float) -> list[int]:
    """Where each stage ends, if none may cost more than `most` and the sum of squared costs is to be least."""
    size = len(sums)
    best = [0.0, *[float("inf")] * (size - 1)]
    starts: list[list[int]] = []
    for _ in range(parts):
        costs, chosen, first = [float("inf")] * size, [0] * size, 0
        for end in range(1, size):
            while sums[end] - sums[first] > most:
                first += 1
            for start in range(first, end):
                cost = best[start] + (sums[end] - sums[start]) ** 2
                if cost < costs[end]:
                    costs[end], chosen[end] = cost, start
        best = costs
        starts.append(chosen)
    ends = [size - 1]
    for chosen in reversed(starts[1:]):
        ends.append(chosen[ends[-1]])
    return ends[::-1]


def cut_by_flops(layers: Sequence[LayerFacts], count: int) -> tuple[tuple[LayerFacts, ...], ...]:
    """Stages with the same counted work, as nearly as the layers allow."""
    return _stages(layers, tuple(layer.forward_flops for layer in layers), count)


def cut_by_blocks(layers: Sequence[LayerFacts], count: int) -> tuple[tuple[LayerFacts, ...], ...]:
    """Stages with equal numbers of blocks, as Megatron-LM cuts; the first and last stage also get the other layers."""
    return _stages(layers, tuple(float(layer.heads is not None) for layer in layers), count)


def _stages(layers: Sequence[LayerFacts], costs: tuple[float, ...], count: int) -> tuple[tuple[LayerFacts, ...], ...]:
    trainable = tuple(layer.parameters > 0 for layer in layers)
    stretches = _cut_once(costs, trainable, count)
    return tuple(tuple(layers[index] for index in stretch) for stretch in stretches)


@cache
def _cut_once(costs: tuple[float, ...], trainable: tuple[bool, ...], count: int) -> tuple[range, ...]:
    return cut(costs, trainable, count)


@dataclass(frozen=True)
class Pipeline:
    """How workers share the stages and the batch."""

    workers: int
    samples: int
    microbatches: int = 1
    schedule: Schedule = "gpipe"
    stages_per_worker: int = 1

    @classmethod
    def of(cls, spec: RunSpec, knobs: Mapping[str, Scalar]) -> "Pipeline":
        """The pipeline that a run's knobs describe."""
        schedule = cast("Schedule", knobs.get("schedule", "gpipe"))
        return cls(
            workers=spec.workers,
            samples=spec.samples_per_step,
            microbatches=int(knobs.get("microbatches", 1)),
            schedule=schedule,
            stages_per_worker=int(knobs["stages_per_worker"]) if schedule == "interleaved" else 1,
        )

    @property
    def stages(self) -> int:
        """The number of stages of the whole pipeline."""
        return self.workers * self.stages_per_worker

    def passes_kept(self, worker: int) -> float:
        """How many forward passes of a micro-batch a worker keeps at once, waiting for their backward pass."""
        if self.schedule == "gpipe":
            return self.microbatches
        if self.schedule == "1f1b":
            return min(self.microbatches, self.workers - worker)
        # Narayanan et al. 2021, as PyTorch does it: so many forward passes of single stages before the first backward.
        round_size = self.microbatches // max(1, self.microbatches // self.workers)
        ahead = (self.stages_per_worker - 1) * round_size + 2 * (self.workers - 1 - worker) + 1
        return min(self.microbatches, ahead / self.stages_per_worker)


def why_not_cut(spec: RunSpec, knobs: Mapping[str, Scalar], facts_of: FactsOf) -> str | None:
    """Why a model cannot be cut so, in words, or None; for a user's model only the run itself can tell everything."""
    if spec.optimizer.name == "lbfgs":
        return f"{spec.strategy} keeps parameters apart and L-BFGS needs them in one place; use another optimizer"
    pipeline = Pipeline.of(spec, knobs)
    if spec.model is None:
        most = most_stages([layer.parameters > 0 for layer in facts_of(spec).layers])
        if pipeline.stages > most:
            return (
                f"{spec.workload} has {most} layers to cut between and {pipeline.stages} stages were asked for "
                f"({pipeline.workers} workers, {pipeline.stages_per_worker} each); use fewer of them, or a deeper model"
            )
    return _why_not_scheduled(pipeline)


def _why_not_scheduled(pipeline: Pipeline) -> str | None:
    count, workers = pipeline.microbatches, pipeline.workers
    if count < 1 or pipeline.samples % count:
        return (
            f"a batch of {pipeline.samples} does not divide into {count} micro-batches; "
            f"use a multiple of {max(1, count)}, or another knob microbatches"
        )
    if pipeline.schedule == "1f1b" and count < workers:
        return (
            f"schedule 1f1b needs at least as many micro-batches as stages, and there are {count} for {workers}; "
            f"raise knob microbatches, or use schedule gpipe"
        )
    if pipeline.schedule != "interleaved":
        return None
    if workers < 2 or pipeline.stages_per_worker < 2:
        return "schedule interleaved needs at least 2 workers with 2 stages each; use schedule gpipe or 1f1b"
    if count % max(1, count // workers):
        return (
            f"schedule interleaved cannot deal {count} micro-batches to {workers} workers; "
            f"set knob microbatches to a multiple of {workers}"
        )
    return None


def pipeline_footprint(
    spec: RunSpec, knobs: Mapping[str, Scalar], model: ModelFacts, width: int = FLOAT_BYTES, numbers: Numbers = "single"
) -> Footprint:
    """What each rank of a pipeline computes, sends and holds, in rank order; `width` is bytes per activation."""
    pipeline = Pipeline.of(spec, knobs)
    stages = cut_by_flops(model.layers, pipeline.stages)
    places = [
        _worker(spec, pipeline, place, stages, model.input_elements, width, numbers)
        for place in range(pipeline.workers)
    ]
    turns = Stages(pipeline.workers, pipeline.microbatches, pipeline.schedule, pipeline.stages_per_worker)
    return in_groups(places, turns)


def _worker(
    spec: RunSpec, pipeline: Pipeline, worker: int, stages: Sequence[Sequence[LayerFacts]], input_elements: int,
    width: int, numbers: Numbers,
) -> RankFootprint:  # fmt: skip
    stage_numbers = range(worker, pipeline.stages, pipeline.workers)
    # Only the first stage reads the samples themselves; what others are given is in their buffers, below.
    held = ModelFacts(
        tuple(layer for stage in stage_numbers for layer in stages[stage]), 0 if worker else input_elements
    )
    # What crosses a cut was cast, so that sums of later stages are in half precision too.
    kept = sum(
        recomputed_model(ModelFacts(tuple(stages[stage]), 0 if stage else input_elements), spec.recompute).kept_bytes(
            "cast" if stage and numbers == "autocast" else numbers
        )
        for stage in stage_numbers
    )
    per_microbatch = pipeline.samples / pipeline.microbatches
    # PyTorch keeps a buffer for each micro-batch that is received, of activations and of gradients.
    edges = [stages[stage - 1][-1] for stage in stage_numbers if stage] + [
        stages[stage][-1] for stage in stage_numbers if stage + 1 < len(stages)
    ]
    received_bytes = sum(layer.output_elements for layer in edges) * width * pipeline.samples
    return trainer(
        spec,
        held,
        _messages(pipeline, stage_numbers, stages, width),
        samples=pipeline.samples,
        ranks=1,
        flops=step_flops(held, spec.recompute, pipeline.samples),
        work=RankWork(held, per_microbatch, last=stage_numbers[-1] == len(stages) - 1),
        activation_bytes=(kept * pipeline.passes_kept(worker) + most_again(held, spec.recompute, numbers))
        * per_microbatch
        + autocast_copies(held.layers, numbers, goes_on=worker > 0)
        + received_bytes,
    )


def _messages(
    pipeline: Pipeline, stage_numbers: range, stages: Sequence[Sequence[LayerFacts]], width: int
) -> tuple[Message, ...]:
    """Activations sent forward and gradients sent back between stages, once for each micro-batch."""
    if pipeline.workers == 1:
        return ()
    scale = width * pipeline.samples / pipeline.microbatches
    messages = []
    for stage in stage_numbers:
        before = stages[stage - 1][-1].output_elements * scale if stage else 0
        after = stages[stage][-1].output_elements * scale if stage + 1 < len(stages) else 0
        messages += [
            exchange(f"activations of stage {stage}", after, before, pipeline.microbatches),
            exchange(f"gradients of stage {stage}", before, after, pipeline.microbatches),
        ]
    return tuple(messages)
