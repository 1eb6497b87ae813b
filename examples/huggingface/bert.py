"""BERT of Hugging Face from its configuration, classifying made-up sentences of unlike length; nothing is downloaded.

paceline run --model bert.py --strategy torch-ddp,torch-zero --workers 1,2 --global-batch 16
"""

import numpy as np
from transformers import BertConfig, BertForSequenceClassification

VOCABULARY, LENGTH, CLASSES = 512, 48, 4


def build() -> BertForSequenceClassification:
    """A small BERT that computes its loss from the labels; without dropout, workers train as one does."""
    size = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 512}
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return BertForSequenceClassification(
        BertConfig(vocab_size=VOCABULARY, max_position_embeddings=LENGTH, num_labels=CLASSES, **size, **dropout)
    )


def data() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Train and test inputs, with their labels inside."""
    return sentences(1024, seed=0), sentences(128, seed=1)


def sentences(count: int, seed: int) -> dict[str, np.ndarray]:
    """What a tokenizer would return: tokens, and which of them are more than padding. The first tells the class."""
    random = np.random.default_rng(seed)
    tokens = random.integers(CLASSES, VOCABULARY, (count, LENGTH))
    labels = random.integers(0, CLASSES, count)
    tokens[:, 0] = labels
    mask = (np.arange(LENGTH) < random.integers(LENGTH // 2, LENGTH + 1, (count, 1))).astype(np.int64)
    return {"input_ids": tokens * mask, "attention_mask": mask, "labels": labels}


def metric(outputs, targets) -> dict[str, float]:
    """The share of sentences whose class is right."""
    return {"accuracy": (outputs.logits.argmax(-1) == targets).float().mean()}
