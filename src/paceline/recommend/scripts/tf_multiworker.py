"""TensorFlow MultiWorkerMirroredStrategy, with TF_CONFIG."""

from paceline.recommend.scripts.base import Script

SCRIPT = Script(
    name="tf-multiworker",
    about="TensorFlow's MultiWorkerMirroredStrategy: {workers} processes, a copy of the model in each",
    start=lambda _spec, file_name: f"python {file_name}",
    knobs=("communication",),
    notes=lambda _spec: (
        "That starts all of them on this machine. On several machines, set TF_CONFIG on each as TensorFlow describes "
        "it and give the same command there: the script is then one worker."
    ),
)
