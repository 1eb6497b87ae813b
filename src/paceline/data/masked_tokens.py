"""The token sequences of `tokens` with some of them masked, to be restored: what BERT is trained on."""

import numpy as np

from paceline.data import tokens
from paceline.data.base import Array, DataRequest, DataSet, DataSource

# Devlin et al., 2019, mask as many; here every one of them becomes the mask, which is the last token.
MASKED_SHARE = 0.15


def load(request: DataRequest) -> DataSet:
    """Inputs with masks, and the tokens that were there as targets of all positions."""
    whole = tokens.load(request)
    generator = np.random.Generator(np.random.PCG64([request.seed, 0xBE27]))

    def masked(sequences: Array) -> Array:
        hidden = generator.random(sequences.shape) < MASKED_SHARE
        return np.where(hidden, (whole.classes or 1) - 1, sequences)

    return DataSet(
        masked(whole.train_inputs), whole.train_inputs, masked(whole.test_inputs), whole.test_inputs, whole.classes
    )


DATA = DataSource(
    name="masked-tokens",
    about="the sequences of tokens with 15 % of them masked, to be restored",
    count=tokens.count,
    load=load,
    test_count=tokens.test_count,
    generated=True,
)
