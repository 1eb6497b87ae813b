"""PyTorch FSDP2: `fully_shard`."""

from paceline.recommend.scripts.base import Script
from paceline.recommend.scripts.torch_text import on_several_machines, optimizer_text, torchrun

SCRIPT = Script(
    name="torch-fsdp",
    about="PyTorch FSDP2: parameters, gradients and optimizer state are divided over {workers} workers",
    start=torchrun,
    knobs=("wrap", "reshard_after_forward", "hsdp_replicas"),
    # The fused form of SGD does not know divided tensors, and FSDP wants those in their plain order.
    values=lambda source: {
        "optimizer": optimizer_text(source.spec.optimizer, "parameters", fused=False),
        "channels_last": False,
    },
    notes=on_several_machines,
)
