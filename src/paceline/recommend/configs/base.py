"""What a configuration is written from: a run, its layout and its passes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from paceline.layout import Layout
from paceline.spec import RunSpec, Scalar


@dataclass(frozen=True)
class Division:
    """A run as every trainer describes it."""

    spec: RunSpec
    layout: Layout
    nodes: int
    # A sentence for the head of the file.
    why: str
    # Samples of one pass of a data rank, passes of a step, and micro-batches of the pipeline within each.
    microbatch: int
    accumulation: int
    microbatches: int
    schedule: str
    stages_per_worker: int
    # Whether gradients are reduced in each of several passes.
    reduces_each: bool = False

    @classmethod
    def of(cls, spec: RunSpec, layout: Layout, knobs: Mapping[str, Scalar], nodes: int, why: str) -> "Division":
        """The division of a run, given its layout and the values of its strategy's knobs."""
        pipeline = layout.pipeline > 1
        microbatches = (int(knobs["microbatches"]) or 2 * layout.pipeline) if pipeline else 1
        schedule = str(knobs["schedule"]) if pipeline else ""
        stages = int(knobs["stages_per_worker"]) if schedule.startswith("interleaved") else 1
        samples = spec.samples_per_step // layout.data_ranks
        return cls(
            spec, layout, nodes, why, samples // spec.accumulation // microbatches, spec.accumulation, microbatches,
            schedule, stages, knobs.get("reduce") == "each",
        )  # fmt: skip


@dataclass(frozen=True)
class Config:
    """A kind of configuration file."""

    name: str
    about: str
    # Why a run cannot be expressed, in words, or None.
    why_not: Callable[[Division], str | None]
    write: Callable[[Division], str]
