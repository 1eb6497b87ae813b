"""What the `data` function of a user's file returns, checked: trees of arrays in memory, their types kept.

Four trees: train inputs, train targets, test inputs, test targets. Targets may be None, and two dicts are inputs
without any: then the targets are the `labels` of the inputs, or the inputs themselves.
"""

from typing import Any

import numpy as np

from paceline.data.base import DataSet
from paceline.data.sources import LoadedData
from paceline.data.tree import Tree, length, map_tree, named_leaves
from paceline.errors import ModelError
from paceline.workloads.user_sources import is_mapped, is_memmap, mapped_data

LABELS = "labels"
_TREES, _INPUTS_ALONE = 4, 2


def data_set(returned: Any, label: str) -> DataSet | LoadedData:
    """The data set that the user's function returned; one in mapped files is read while training goes on."""
    train_x, train_y, test_x, test_y = (
        None if tree is None else map_tree(lambda leaf: _as_array(leaf, label), tree) for tree in _four(returned, label)
    )
    train_y, test_y = _targets(train_x, train_y), _targets(test_x, test_y)
    for what, inputs, targets in (("train", train_x, train_y), ("test", test_x, test_y)):
        _check_lengths(what, inputs, targets, label)
    is_class = not isinstance(train_y, dict | tuple) and train_y.dtype.kind in "iub" and train_y is not train_x
    classes = int(train_y.max()) + 1 if is_class else None
    if any(map(is_mapped, (train_x, train_y, test_x, test_y))):
        return mapped_data((train_x, train_y), (test_x, test_y), classes)
    return DataSet(train_x, train_y, test_x, test_y, classes)


def _four(returned: Any, label: str) -> tuple[Tree, Tree, Tree, Tree]:
    """Train inputs, train targets, test inputs and test targets; targets that were not returned are None."""
    if isinstance(returned, tuple | list):
        if len(returned) == _INPUTS_ALONE and all(isinstance(tree, dict) and tree for tree in returned):
            return returned[0], None, returned[1], None
        if len(returned) == _TREES and returned[0] is not None and returned[2] is not None:
            return tuple(returned)
    raise ModelError(
        f"data() of {label} must return four arrays: train inputs, train targets, test inputs, test targets; "
        f"each may be an array, a tuple or a dict of them, targets may be None, "
        f"and two dicts are train and test inputs with their labels inside"
    )


def _targets(inputs: Tree, targets: Tree | None) -> Tree:
    if targets is not None:
        return targets
    return inputs[LABELS] if isinstance(inputs, dict) and LABELS in inputs else inputs


def _check_lengths(what: str, inputs: Tree, targets: Tree, label: str) -> None:
    for kind, tree in (("inputs", inputs), ("targets", targets)):
        counts = {name: len(leaf) for name, leaf in named_leaves(tree)}
        if not counts:
            raise ModelError(f"data() of {label} returns {what} {kind} without an array; return at least one")
        if len(set(counts.values())) > 1:
            lengths = ", ".join(f"{count} of {name}" for name, count in counts.items())
            raise ModelError(
                f"data() of {label} returns {what} {kind} of unlike length: {lengths}; return as many of each"
            )
    if not length(inputs) or length(inputs) != length(targets):
        raise ModelError(
            f"data() of {label} returns {length(inputs)} {what} inputs and {length(targets)} {what} targets; "
            f"return at least one of each and as many of one as of the other"
        )


def _as_array(value: Any, label: str) -> np.ndarray:
    """The value as an array of its type, but float64 in single precision; what is no number is refused."""
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ModelError(
            f"data() of {label} returns something that is no array: {error}; return NumPy arrays"
        ) from None
    if array.ndim == 0 or not (np.issubdtype(array.dtype, np.number) or array.dtype == np.bool_):
        raise ModelError(f"data() of {label} returns {array.dtype} of shape {array.shape}; return arrays of numbers")
    # Of a mapped file each batch is cast by itself.
    return array.astype(np.float32) if array.dtype == np.float64 and not is_memmap(array) else array
