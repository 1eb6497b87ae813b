"""JAX with parameters and optimizer state divided over a mesh."""

from paceline.recommend.scripts.base import Script

SCRIPT = Script(
    name="jax-fsdp",
    about="JAX with the batch, the parameters and the optimizer state divided over {workers} devices (GPUs, or parts "
    "of the CPU where there are not as many)",
    start=lambda _spec, file_name: f"python {file_name}",
)
