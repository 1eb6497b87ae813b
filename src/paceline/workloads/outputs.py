"""What a model returns, whatever the framework: where its loss and its logits are.

An output is a tensor, a tuple, a dict, or an object with attributes such as a `ModelOutput` of Hugging Face.
A loss that it carries as `loss` is the loss of a file that has no function `loss`. Cross-entropy and accuracy read its
`logits`; of a tuple the first part, and a tensor is its own logits. `loss` and `metric` of a file get all of it.
"""

from collections.abc import Mapping
from typing import Any


def loss_in(outputs: Any) -> Any | None:
    """The loss that a model computed itself; None where it did not."""
    return _part(outputs, "loss")


def logits_of(outputs: Any) -> Any:
    """What cross-entropy and accuracy read."""
    logits = _part(outputs, "logits")
    if logits is not None:
        return logits
    return outputs[0] if isinstance(outputs, tuple) and outputs else outputs


def _part(outputs: Any, name: str) -> Any | None:
    # A dict is asked for first, as `Mapping` is slow to tell.
    is_mapping = isinstance(outputs, dict) or isinstance(outputs, Mapping)  # noqa: SIM101
    return outputs.get(name) if is_mapping else getattr(outputs, name, None)
