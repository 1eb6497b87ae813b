"""A vision transformer of timm on made-up images of one byte a value; nothing is downloaded.

paceline run --model vit.py --strategy torch-ddp,torch-fsdp --workers 1,2 --global-batch 32
"""

import numpy as np
import timm
from torch import Tensor, nn

SIDE, CLASSES = 32, 10


class FromBytes(nn.Module):
    """Turns bytes into numbers around nought on the device, so that a quarter of the memory holds them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """Scores of the classes."""
        return self.model(images.float() / 127.5 - 1)


def build() -> nn.Module:
    """The smallest transformer of timm, for small images."""
    return FromBytes(
        timm.create_model("vit_tiny_patch16_224", img_size=SIDE, patch_size=8, depth=4, num_classes=CLASSES)
    )


def data() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Images with a bright stripe whose place tells the class."""
    return (*images(1024, seed=0), *images(128, seed=1))


def images(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Images with channels first, and their classes."""
    random = np.random.default_rng(seed)
    pixels = random.integers(0, 128, (count, 3, SIDE, SIDE), dtype=np.uint8)
    classes = random.integers(0, CLASSES, count)
    for image, number in zip(pixels, classes, strict=True):
        image[:, number * 3 : number * 3 + 3] += 100
    return pixels, classes
