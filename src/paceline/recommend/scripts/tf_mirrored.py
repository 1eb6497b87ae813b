"""TensorFlow MirroredStrategy."""

from paceline.recommend.scripts.base import Script

SCRIPT = Script(
    name="tf-mirrored",
    about="TensorFlow's MirroredStrategy: one process, a copy of the model on each of {workers} devices (GPUs, or "
    "parts of the CPU where there are not as many)",
    start=lambda _spec, file_name: f"python {file_name}",
)
