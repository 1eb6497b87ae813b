"""Real text that ships with Paceline: the first forty chapters of Moby-Dick, as bytes.

Samples are stretches of the text that follow each other, each byte a token. The last tenth of the text is to test on.
`tools/make_text.py` wrote `text.xz`; `text.txt` beside it says where the text comes from.
"""

import lzma
from functools import cache
from importlib import resources

import numpy as np

from paceline.data.base import Array, DataRequest, DataSet, DataSource, test_share
from paceline.errors import SpecError

TRAIN_BYTES, TEST_BYTES = 326_000, 36_000
DEFAULT_LENGTH = 64
# Every byte is a token.
VOCABULARY = 256


@cache
def text() -> bytes:
    """All of it."""
    return lzma.decompress((resources.files("paceline.data") / "text.xz").read_bytes())


def load(request: DataRequest) -> DataSet:
    """Inputs are stretches of the text, targets the same shifted by one byte."""
    length, tokens = _length(request), np.frombuffer(text(), np.uint8).astype(np.int64)
    (train_inputs, train_targets), (test_inputs, test_targets) = (
        _stretches(part, length) for part in (tokens[:TRAIN_BYTES], tokens[-TEST_BYTES:])
    )
    whole = DataSet(train_inputs, train_targets, test_inputs, test_targets, VOCABULARY)
    return whole.first(request.train_samples)


def _stretches(tokens: Array, length: int) -> tuple[Array, Array]:
    rows = _rows(len(tokens), length)
    return tokens[: rows * length].reshape(rows, length), tokens[1 : rows * length + 1].reshape(rows, length)


def _rows(tokens: int, length: int) -> int:
    """Stretches of so many tokens, after each of which one more follows."""
    return (tokens - 1) // length


def _length(request: DataRequest) -> int:
    """The tokens of a sample; refused where the text is too short for one to test on."""
    length = (request.input_shape or (DEFAULT_LENGTH,))[0]
    if length >= TEST_BYTES:
        raise SpecError(
            f"sequences of {length:,} were asked for, and text has {TEST_BYTES:,} bytes to test on; "
            f"use shorter ones, or data set tokens"
        )
    return length


def count(request: DataRequest) -> int:
    """The number of training sequences."""
    rows = _rows(TRAIN_BYTES, _length(request))
    return min(rows, request.train_samples or rows)


def test_count(request: DataRequest) -> int:
    """The number of test sequences."""
    length = _length(request)
    return test_share(_rows(TEST_BYTES, length), _rows(TRAIN_BYTES, length), request)


DATA = DataSource(
    name="text",
    about="362 kB of Moby-Dick (public domain) as bytes, for models of tokens; ships with Paceline",
    count=count,
    load=load,
    test_count=test_count,
    classes=VOCABULARY,
)
