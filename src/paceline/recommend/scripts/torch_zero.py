"""PyTorch's ZeroRedundancyOptimizer beside DistributedDataParallel."""

from collections.abc import Mapping
from typing import Any

from paceline.recommend.scripts.base import Script, Source
from paceline.recommend.scripts.layout import call
from paceline.recommend.scripts.torch_text import on_several_machines, optimizer_call, torchrun


def values(source: Source) -> Mapping[str, Any]:
    """The optimizer is given by its class, not made."""
    kind, options = optimizer_call(source.spec.optimizer, fused=True)
    bucket = f"parameters_as_bucket_view={source.knobs['parameters_as_bucket_view']}"
    settings = [f"optimizer_class=torch.optim.{kind}", bucket, *options]
    return {
        "called": "wrapped",
        "optimizer": call("return ZeroRedundancyOptimizer(", ["parameters", *settings], indent=4),
        # In one buffer parameters must have their plain order.
        "channels_last": False,
    }


SCRIPT = Script(
    name="torch-zero",
    about="PyTorch DistributedDataParallel with the optimizer state divided over {workers} workers (ZeRO stage 1)",
    start=torchrun,
    knobs=("parameters_as_bucket_view", "find_unused_parameters"),
    values=values,
    notes=on_several_machines,
)
