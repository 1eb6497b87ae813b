"""MNIST: 60,000 training and 10,000 test images of handwritten digits (LeCun, Cortes, Burges).

Its four files are looked for in `$PACELINE_DATA` (or `mnist` in it) and the user's cache, or downloaded into that.
"""

import gzip
import hashlib
import os
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from paceline.data.base import DataRequest, DataSet, DataSource, FetchProgress, scale_pixels, test_share
from paceline.data.download import fetch
from paceline.errors import DataError

# MD5 sums as published with the files.
FILES = {
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
}
MIRRORS = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")
TRAIN_SAMPLES, TEST_SAMPLES = 60_000, 10_000
# The idx format: two zero bytes, a type (8 is unsigned byte), the number of dimensions, then their sizes.
IDX_UNSIGNED_BYTE = 8


def cache_folder() -> Path:
    """The folder for downloaded files, which all projects of this user share."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "paceline" / "mnist"


def find_folder() -> Path | None:
    """The first folder that holds all four files."""
    configured = os.environ.get("PACELINE_DATA")
    places = [Path(configured), Path(configured) / "mnist"] if configured else []
    for folder in [*places, cache_folder()]:
        if all((folder / name).is_file() for name in FILES):
            return folder
    return None


def files() -> list[Path] | None:
    """The four files, where they are here."""
    folder = find_folder()
    return [folder / name for name in FILES] if folder is not None else None


def prepare(progress: FetchProgress) -> None:
    """Makes sure that the files are here; downloads them when they are not."""
    if find_folder() is not None:
        return
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, md5 in FILES.items():
            fetch(name, MIRRORS, folder, md5, progress)
    except OSError as error:
        names = ", ".join(FILES)
        raise DataError(
            f"data set mnist is not on this machine and cannot be downloaded ({error}); put {names} into {folder}, or "
            f"name their folder with --data-dir or $PACELINE_DATA, or use --dataset mnist-5k, which ships with Paceline"
        ) from error


def read_idx(path: Path) -> npt.NDArray[np.uint8]:
    """One idx.gz file as an array."""
    try:
        raw = gzip.decompress(path.read_bytes())
        dimensions = raw[3]
        shape = [int.from_bytes(raw[4 + 4 * i : 8 + 4 * i], "big") for i in range(dimensions)]
        if raw[2] != IDX_UNSIGNED_BYTE:
            raise ValueError("it does not hold unsigned bytes")
        return np.frombuffer(raw, np.uint8, offset=4 + 4 * dimensions).reshape(shape)
    except (OSError, EOFError, ValueError, IndexError, zlib.error) as error:
        raise DataError(f"{path} is damaged ({error}); delete it and run again, or put a good copy there") from error


def load(request: DataRequest) -> DataSet:
    """The arrays; every file is checked against its published MD5."""
    folder = find_folder()
    if folder is None:
        raise DataError("data set mnist is not on this machine; put its four idx.gz files into --data-dir")
    for name, md5 in FILES.items():
        if hashlib.md5((folder / name).read_bytes(), usedforsecurity=False).hexdigest() != md5:
            raise DataError(f"{folder / name} is not the MNIST file of that name (its MD5 differs); replace it")
    train_images, train_labels, test_images, test_labels = (read_idx(folder / name) for name in FILES)
    whole = DataSet(
        scale_pixels(train_images), train_labels.astype(np.int64),
        scale_pixels(test_images), test_labels.astype(np.int64), classes=10,
    )  # fmt: skip
    return whole.first(request.train_samples)


DATA = DataSource(
    name="mnist",
    about="60,000 + 10,000 handwritten digits, 28 x 28",
    count=lambda request: min(TRAIN_SAMPLES, request.train_samples or TRAIN_SAMPLES),
    load=load,
    test_count=lambda request: test_share(TEST_SAMPLES, TRAIN_SAMPLES, request),
    prepare=prepare,
    files=files,
    shape=(1, 28, 28),
    classes=10,
)
