"""JAX data parallelism over a mesh."""

from paceline.recommend.scripts.base import Script

SCRIPT = Script(
    name="jax-data",
    about="JAX with the batch divided over {workers} devices (GPUs, or parts of the CPU where there are not as many) "
    "and the parameters on each of them",
    start=lambda _spec, file_name: f"python {file_name}",
)
