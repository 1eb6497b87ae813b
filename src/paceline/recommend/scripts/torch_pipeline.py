"""PyTorch pipeline parallelism: `torch.distributed.pipelining`."""

from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from paceline.costs.cuts import Pipeline, cut_by_flops
from paceline.recommend.scripts.base import Script, Source
from paceline.recommend.scripts.torch_text import module_lines, module_names, torchrun
from paceline.workloads.base import model_facts

SCHEDULES = {"gpipe": "ScheduleGPipe", "1f1b": "Schedule1F1B", "interleaved": "ScheduleInterleaved1F1B"}


def values(source: Source) -> Mapping[str, Any]:
    """A built-in model is cut here, between numbered modules; a user's when the script runs."""
    pipeline = Pipeline.of(source.spec, source.knobs)
    edges, bare = cut_built_in(source, pipeline.stages) if source.spec.model is None else ([], False)
    return {
        "schedule": SCHEDULES[pipeline.schedule],
        "places": "places" if pipeline.schedule == "interleaved" else "places[0]",
        "is_interleaved": pipeline.schedule == "interleaved",
        "edges": edges,
        # A stage of layers without parameters has nothing to update.
        "may_lack_parameters": bare or "stages" in source.own_functions,
        # Activations travel in their plain order.
        "channels_last": False,
    }


def cut_built_in(source: Source, count: int) -> tuple[list[str], bool]:
    """The modules before which each stage begins and the last ends, and whether a stage has no parameters."""
    layers, shape = source.built_in
    names, stages = module_names(layers, shape), cut_by_flops(model_facts(layers, shape).layers, count)
    ends = list(accumulate(len(stage) for stage in stages))
    edges = ["0", *(names[end] for end in ends[:-1]), str(len(module_lines(layers, shape)))]
    bare = any(not any(layer.parameters for layer in stage) for stage in stages)
    return edges, bare


SCRIPT = Script(
    name="torch-pipeline",
    about="PyTorch pipeline parallelism: each of {workers} workers holds a stretch of the layers, and micro-batches "
    "keep all of them busy",
    start=torchrun,
    knobs=("schedule", "microbatches", "stages_per_worker"),
    values=values,
    tests=False,
    notes=lambda _spec: "It tells the loss of training; the checkpoint is that of the whole model.",
)
