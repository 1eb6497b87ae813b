"""How many samples a model is evaluated on at once."""

import numpy as np
import pytest

from paceline.data.base import DataSet


@pytest.mark.parametrize(
    ("inputs", "targets", "classes", "batch"),
    [
        ((1, 28, 28), (), 10, 512),
        ((3, 224, 224), (), 1000, 512),
        ((64,), (64,), 256, 512),
        # GPT-2's logits are 206 MB a sample.
        ((1024,), (1024,), 50257, 2),
        ((8192,), (8192,), 128_256, 1),
    ],
)
def test_it_is_smaller_where_a_sample_has_many_outputs(inputs, targets, classes, batch):
    given, wanted = np.zeros((1, *inputs), np.int8), np.zeros((1, *targets), np.int64)
    assert DataSet(given, wanted, given, wanted, classes).evaluation_batch == batch
