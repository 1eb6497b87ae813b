"""Writes `src/paceline/data/mnist_5k.xz` from the four MNIST files: `python tools/make_mnist_5k.py FOLDER`.

The first 500 training and 100 test images of each digit, in the order of the originals.
"""

import lzma
import sys
from pathlib import Path

import numpy as np

from paceline.data.mnist import FILES, read_idx

TARGET = Path(__file__).parents[1] / "src/paceline/data/mnist_5k.xz"
# Neighbouring bytes of a picture are alike in value but not in bit position.
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 4, "lp": 0, "pb": 0}]


def first_of_each(images: np.ndarray, labels: np.ndarray, per_class: int) -> bytes:
    """Images then labels of a class-balanced selection."""
    chosen = np.sort(np.concatenate([np.flatnonzero(labels == digit)[:per_class] for digit in range(10)]))
    return bytes(images[chosen].tobytes() + labels[chosen].tobytes())


if __name__ == "__main__":
    train_images, train_labels, test_images, test_labels = (read_idx(Path(sys.argv[1]) / name) for name in FILES)
    raw = first_of_each(train_images, train_labels, 500) + first_of_each(test_images, test_labels, 100)
    TARGET.write_bytes(lzma.compress(raw, filters=FILTERS))
    print(f"{TARGET}: {TARGET.stat().st_size:,} bytes")  # noqa: T201
