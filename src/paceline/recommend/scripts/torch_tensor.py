"""PyTorch tensor parallelism: DTensor through `parallelize_module`."""

from collections.abc import Mapping
from typing import Any

from paceline.recommend.scripts.base import Script, Source
from paceline.recommend.scripts.torch_text import module_names, optimizer_text, torchrun
from paceline.workloads.base import model_facts
from paceline.workloads.splits import Split, split_layers

COLUMNS, GATHERED_COLUMNS, ROWS = (
    "ColwiseParallel()",
    "ColwiseParallel(output_layouts=Replicate())",
    "RowwiseParallel()",
)


def values(source: Source) -> Mapping[str, Any]:
    """The plan of a built-in model is written out; a user's is made when the script runs."""
    plan = dict[str, str]()
    if source.spec.model is None:
        layers, shape = source.built_in
        splits = split_layers(model_facts(layers, shape), source.spec.workers, split_convolutions=False)
        for name, split in zip(module_names(layers, shape), splits, strict=True):
            plan |= styles(name, split)
    return {
        "plan": plan,
        # The fused form of SGD does not know divided tensors.
        "optimizer": optimizer_text(source.spec.optimizer, "parameters", fused=False),
    }


def styles(name: str, split: Split) -> dict[str, str]:
    """How `parallelize_module` is to divide one layer's modules."""
    match split.part:
        case "heads":
            inside = {"qkv": COLUMNS, "out": ROWS, "up": COLUMNS, "down": ROWS}
            return {f"{name}.{module}": style for module, style in inside.items()}
        case "columns":
            return {name: GATHERED_COLUMNS if split.gathers_output else COLUMNS}
        case "rows":
            return {name: ROWS}
    return {}


SCRIPT = Script(
    name="torch-tensor",
    about="PyTorch tensor parallelism: dense layers and attention heads are split over {workers} workers by DTensor, "
    "which does not know convolutions, so that those stay whole on every worker",
    start=torchrun,
    knobs=("convolutions",),
    values=values,
    notes="The workers exchange activations in every layer: keep them on one machine.",
)
