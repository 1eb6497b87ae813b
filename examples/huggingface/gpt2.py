"""GPT-2 of Hugging Face from its configuration, on made-up sentences; nothing is downloaded.

paceline run --model gpt2.py --strategy torch-ddp,torch-fsdp --workers 1,2 --global-batch 16
"""

import numpy as np
from transformers import GPT2Config, GPT2LMHeadModel

VOCABULARY, LENGTH = 512, 64


def build() -> GPT2LMHeadModel:
    """A small GPT-2 that computes its loss from the labels; without dropout, workers train as one does."""
    size = {"n_embd": 128, "n_layer": 2, "n_head": 4}
    dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_positions=LENGTH, use_cache=False, **size, **dropout))


def data() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Train and test inputs, with their labels inside; a token is followed by the next one."""
    return sentences(1024, seed=0), sentences(128, seed=1)


def sentences(count: int, seed: int) -> dict[str, np.ndarray]:
    """What a tokenizer would return."""
    first = np.random.default_rng(seed).integers(0, VOCABULARY, (count, 1))
    tokens = (first + np.arange(LENGTH)) % VOCABULARY
    return {"input_ids": tokens, "attention_mask": np.ones_like(tokens), "labels": tokens}
