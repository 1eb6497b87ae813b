"""PyTorch DistributedDataParallel under torchrun."""

from paceline.recommend.scripts.base import Script
from paceline.recommend.scripts.torch_text import on_several_machines, torchrun

SCRIPT = Script(
    name="torch-ddp",
    about="PyTorch DistributedDataParallel, the whole model on each of {workers} workers",
    start=torchrun,
    knobs=("bucket_mb", "gradient_as_bucket_view", "static_graph", "find_unused_parameters", "accumulation"),
    values=lambda _source: {"called": "wrapped"},
    notes=on_several_machines,
)
