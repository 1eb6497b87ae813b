"""How a sequence of layers is cut into stages for the workers of a pipeline, and what each worker then costs.

What runs and what a footprint counts are cut by the same function, so that they agree.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Literal, cast

from paceline.costs.footprint import FLOAT_BYTES, Footprint, ModelFacts, RankFootprint, Stages, in_groups, trainer
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
    """`count` stretches whose heaviest is as light as can be, and the others as even as can be.

    Each has a layer, and the first one with parameters, as there must be something to send gradients back for.
    """
    head = _head(trainable)
    if count > len(costs) - head:
        raise ValueError(f"{format_count(len(costs) - head, 'layer')} cannot be cut into {count} stages")
    joined = [sum(costs[: head + 1]), *costs[head + 1 :]]
    lightest, _ = _partition(joined, count, max)
    _, ends = _partition(joined, count, lambda so_far, cost: so_far + cost**2 if cost <= lightest else float("inf"))
    edges = [0, *(end + head for end in ends)]
    return tuple(range(edges[stage], edges[stage + 1]) for stage in range(count))


def most_stages(trainable: Sequence[bool]) -> int:
    """Into how many stages `cut` can cut layers of which these have parameters."""
    return len(trainable) - _head(trainable)


def _head(trainable: Sequence[bool]) -> int:
    return next((index for index, has_parameters in enumerate(trainable) if has_parameters), 0)


def _partition(
    costs: Sequence[float], parts: int, join: Callable[[float, float], float]
) -> tuple[float, tuple[int, ...]]:
    """The contiguous parts with the least joined cost: that cost, and where each part ends."""
    sums = [0.0, *accumulate(costs)]
    impossible: tuple[float, tuple[int, ...]] = (float("inf"), ())
    best = [(0.0, impossible[1]), *[impossible] * len(costs)]
    for part in range(1, parts + 1):
        best = [
            min(
                (
                    (join(best[start][0], sums[end] - sums[start]), (*best[start][1], end))
                    for start in range(part - 1, end)
                ),
                key=lambda candidate: candidate[0],
                default=impossible,
            )
            for end in range(len(costs) + 1)
        ]
    return best[-1]


def cut_by_flops(layers: Sequence[LayerFacts], count: int) -> tuple[tuple[LayerFacts, ...], ...]:
    """Stages with the same counted work, as nearly as the layers allow."""
    trainable = tuple(layer.parameters > 0 for layer in layers)
    stretches = _cut_once(tuple(layer.forward_flops for layer in layers), trainable, count)
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
        """The pipeline that the knobs ask for."""
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
        """Of the whole pipeline."""
        return self.workers * self.stages_per_worker

    def passes_kept(self, worker: int) -> float:
        """Forward passes of a micro-batch through all stages of a worker that wait for their backward pass at once."""
        if self.schedule == "gpipe":
            return self.microbatches
        if self.schedule == "1f1b":
            return min(self.microbatches, self.workers - worker)
        # Narayanan et al. 2021, as PyTorch does it: so many forward passes of single stages before the first backward.
        round_size = self.microbatches // max(1, self.microbatches // self.workers)
        ahead = (self.stages_per_worker - 1) * round_size + 2 * (self.workers - 1 - worker) + 1
        return min(self.microbatches, ahead / self.stages_per_worker)


def why_not_cut(spec: RunSpec, knobs: Mapping[str, Scalar], facts_of: FactsOf) -> str | None:
    """Why a model cannot be trained so, in words, or None; of a user's model only the run itself can tell all."""
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
    """Every rank, in order; `width` is of an activation."""
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
        activation_bytes=(kept * pipeline.passes_kept(worker) + most_again(held, spec.recompute, numbers))
        * per_microbatch
        + autocast_copies(held.layers, numbers, goes_on=worker > 0)
        + received_bytes,
    )


def _messages(
    pipeline: Pipeline, stage_numbers: range, stages: Sequence[Sequence[LayerFacts]], width: int
) -> tuple[Message, ...]:
    """What goes forward and comes back at the cuts, once for each micro-batch."""
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
