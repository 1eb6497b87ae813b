"""TensorFlow on one device."""

from paceline.recommend.scripts.base import Script

SCRIPT = Script(
    name="tf-single",
    about="TensorFlow on one device, the step as a traced function",
    start=lambda _spec, file_name: f"python {file_name}",
)
