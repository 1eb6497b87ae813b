"""JAX on one device."""

from paceline.recommend.scripts.base import Script

SCRIPT = Script(
    name="jax-single",
    about="JAX on one device, the step compiled by XLA",
    start=lambda _spec, file_name: f"python {file_name}",
)
