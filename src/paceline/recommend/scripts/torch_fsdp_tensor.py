"""PyTorch FSDP2 over rows of workers that split the layers: a mesh of two dimensions."""

from collections.abc import Mapping
from typing import Any

from paceline.recommend.scripts.base import Script, Source
from paceline.recommend.scripts.torch_tensor import plan_values
from paceline.recommend.scripts.torch_text import on_several_machines, torchrun


def values(source: Source) -> Mapping[str, Any]:
    """A row splits the layers; FSDP wants tensors in their plain order."""
    plan = plan_values(source, int(source.knobs["tensor"]))
    return {**plan, "ways": "TENSOR", "split_mesh": 'mesh["tensor"]', "channels_last": False}


SCRIPT = Script(
    name="torch-fsdp-tensor",
    about="PyTorch FSDP2 on top of tensor parallelism: {workers} workers in rows that split dense layers and attention "
    "heads, each part divided over the rows; DTensor does not know convolutions, which are not split",
    start=torchrun,
    knobs=("tensor", "convolutions"),
    values=values,
    notes=lambda spec: f"Keep each row on one machine. {on_several_machines(spec)}",
)
