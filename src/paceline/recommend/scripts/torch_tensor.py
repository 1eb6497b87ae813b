"""PyTorch tensor parallelism: DTensor through `parallelize_module`."""

from collections.abc import Mapping
from typing import Any

from paceline.costs.splits import split_layers
from paceline.errors import SpecError
from paceline.recommend.scripts.base import Script, Source
from paceline.recommend.scripts.torch_text import module_names, optimizer_text, torchrun
from paceline.workloads.base import model_facts

STYLES = {"columns": "ColwiseParallel()", "rows": "RowwiseParallel()"}
# Where nothing follows that could take parts of the features.
GATHERED = "ColwiseParallel(output_layouts=Replicate())"


def values(source: Source) -> Mapping[str, Any]:
    """All workers split every layer."""
    return {**plan_values(source, source.spec.workers), "ways": "world", "split_mesh": "mesh"}


def plan_values(source: Source, ways: int) -> Mapping[str, Any]:
    """The plan of a built-in model is written out; a user's is made when the script runs."""
    plan, blocks = dict[str, str](), list[int]()
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
    }


SCRIPT = Script(
    name="torch-tensor",
    about="PyTorch tensor parallelism: dense layers and attention heads are split over {workers} workers by DTensor, "
    "which does not know convolutions, so that those stay whole on every worker",
    start=torchrun,
    knobs=("convolutions",),
    values=values,
    notes=lambda _spec: "The workers exchange activations in every layer: keep them on one machine.",
)
