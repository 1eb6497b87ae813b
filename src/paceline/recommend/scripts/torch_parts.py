"""What templates of PyTorch scripts that divide a model are given: its cut into stages, or its plan of split layers."""

from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from paceline.costs.cuts import Pipeline, cut_by_flops
from paceline.costs.splits import split_layers
from paceline.errors import SpecError
from paceline.recommend.scripts.base import Source
from paceline.recommend.scripts.torch_text import module_lines, module_names, optimizer_text
from paceline.workloads.base import model_facts

SCHEDULES = {
    "gpipe": "ScheduleGPipe",
    "1f1b": "Schedule1F1B",
    "interleaved": "ScheduleInterleaved1F1B",
    "interleaved-zero-bubble": "ScheduleInterleavedZeroBubble",
    "zbv": "ScheduleZBVZeroBubble",
    "dualpipev": "ScheduleDualPipeV",
}
STYLES = {"columns": "ColwiseParallel()", "rows": "RowwiseParallel()"}
# Where nothing follows that could take parts of the features.
GATHERED = "ColwiseParallel(output_layouts=Replicate())"


def pipeline_values(source: Source) -> Mapping[str, Any]:
    """A built-in model is cut here, between numbered modules; a user's when the script runs."""
    pipeline = Pipeline.of(source.spec, source.knobs)
    edges, bare = cut_built_in(source, pipeline.stages) if source.spec.model is None else ([], False)
    return {
        "schedule": SCHEDULES[pipeline.schedule],
        "places": "places" if pipeline.schedule == "interleaved" else "places[0]",
        "is_interleaved": pipeline.schedule == "interleaved",
        "edges": edges,
        # A stage of layers without parameters has nothing to update.
        "may_lack_parameters": bare or "stages" in source.user_functions,
        # Activations travel in their plain order.
        "channels_last": False,
    }


def cut_built_in(source: Source, count: int) -> tuple[list[str], bool]:
    """The modules before which each stage begins and the last ends, and whether a stage has no parameters."""
    layers, shape = source.built_in
    names, stages = module_names(layers, shape), cut_by_flops(model_facts(layers, shape).layers, count)
    ends = list(accumulate(len(stage) for stage in stages))
    edges = ["0", *(names[end] for end in ends[:-1]), str(len(module_lines(layers, shape)))]
    return edges, any(not any(layer.parameters for layer in stage) for stage in stages)


def tensor_values(source: Source) -> Mapping[str, Any]:
    """The plan of a built-in model is written out; a user's is made when the script runs."""
    plan, blocks, ways = dict[str, str](), list[int](), source.spec.workers
    if source.spec.model is None:
        layers, shape = source.built_in
        splits = split_layers(model_facts(layers, shape), ways, split_convolutions=False)
        for name, split in zip(module_names(layers, shape), splits, strict=True):
            if split.part == "heads":
                blocks.append(int(name))
            elif split.part in STYLES:
                plan[name] = GATHERED if split.gathers_output else STYLES[split.part]
        if ways > 1 and not plan and not blocks:
            raise SpecError(
                f"a script cannot be written: of {source.spec.workload} only convolutions divide over "
                f"{ways} workers, and DTensor does not know those; use another number of workers"
            )
    return {
        "plan": plan,
        # They follow each other.
        "blocks": f"range({blocks[0]}, {blocks[-1] + 1})" if blocks else "",
        # The fused form of SGD does not know divided tensors.
        "optimizer": optimizer_text(source.spec.optimizer, "parameters", fused=False),
        "comes_in_groups": True,
    }
