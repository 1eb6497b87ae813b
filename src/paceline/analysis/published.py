"""Numbers that the two studies behind Paceline printed, to stand beside what is measured here.

Bhilegaonkar, Hoskote, Nale, "Comparison & study of Distributed Deep Learning Training Techniques": TensorFlow
MirroredStrategy, MNIST, 30 epochs, batch 1024 per GPU (59 and 30 steps an epoch), 1 against 2 GPUs. Ramkeesoon printed
his rates as pictures only.
"""

from dataclasses import dataclass

from paceline.spec import RunSpec


@dataclass(frozen=True)
class Published:
    """A published result of one run."""

    source: str
    workers: int
    # Of the whole training.
    seconds: float
    # Seconds of one worker over workers times these.
    efficiency: float
    about: str


SOURCE = "Bhilegaonkar et al."
_ABOUT = "30 epochs of 60,000 images, batch 1024 per GPU"
BHILEGAONKAR = (
    Published(SOURCE, 1, 109.47, 1.0, _ABOUT),
    Published(SOURCE, 2, 78.61, 0.6963, _ABOUT),
)
LOCAL_BATCH = 1024


def published_beside(spec: RunSpec) -> tuple[Published, ...]:
    """Published results of runs on MNIST with the same local batch, whatever the machine and the length."""
    digits = spec.dataset in ("mnist", "mnist-5k")
    return BHILEGAONKAR if digits and spec.local_batch == LOCAL_BATCH else ()
