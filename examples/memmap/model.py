"""A data set in files that are mapped into memory: of each batch only its own samples are read.

paceline run --model model.py --strategy torch-ddp --workers 1,2 --global-batch 64
SAMPLES=340000 paceline run --model model.py --strategy torch-ddp --workers 2 --global-batch 64 --steps 50   # 4 GB
"""

import os
import tempfile
from pathlib import Path

import numpy as np
from torch import Tensor, nn

SHAPE, CLASSES = (3, 64, 64), 10
SAMPLES, TEST_SAMPLES = int(os.environ.get("SAMPLES", "4096")), 256
FOLDER = Path(os.environ.get("DATA_FOLDER", tempfile.gettempdir())) / "paceline-memmap-example"


class Network(nn.Module):
    """Two convolutions and a classifier, for images of one byte a value."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(),
            nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, CLASSES),
        )  # fmt: skip

    def forward(self, images: Tensor) -> Tensor:
        """Scores of the classes."""
        return self.layers(images.float() / 255)


def build() -> nn.Module:
    """The network."""
    return Network()


def data() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Images and classes of training and testing, none of them read yet."""
    images, classes = mapped("images", (SAMPLES, *SHAPE)), mapped("classes", (SAMPLES,))
    return images[TEST_SAMPLES:], classes[TEST_SAMPLES:], images[:TEST_SAMPLES], classes[:TEST_SAMPLES]


def mapped(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """An array in a file, which is written where it is not there yet, piece by piece."""
    file = FOLDER / f"{name}-{SAMPLES}.npy"
    if not file.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        draft = FOLDER / f"{file.name}.{os.getpid()}"
        array = np.lib.format.open_memmap(draft, "w+", np.uint8, shape)
        random = np.random.default_rng(len(name))
        for start in range(0, len(array), 1024):
            part = array[start : start + 1024]
            part[:] = random.integers(0, 256 if len(shape) > 1 else CLASSES, part.shape, dtype=np.uint8)
        array.flush()
        # Several processes may have written it; all of them wrote the same.
        draft.replace(file)
    return np.load(file, mmap_mode="r")
