"""Trees of arrays: what a batch is made of, whatever the framework.

A tree is an array, a tuple of trees or a dict of trees. All arrays of a tree have as many samples. Its leaves may be
arrays of NumPy or of a framework: anything that is no tuple and no dict.
"""

from collections.abc import Callable, Iterator
from typing import Any

# An array, a tuple of trees, or a dict of trees with text as keys.
Tree = Any


def map_tree(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """The tree with the function's result in place of each leaf; it is given the leaves of other such trees too."""
    if isinstance(tree, dict):
        return {name: map_tree(function, tree[name], *(other[name] for other in others)) for name in tree}
    if isinstance(tree, tuple):
        return tuple(map_tree(function, *parts) for parts in zip(tree, *others, strict=True))
    return function(tree, *others)


def named_leaves(tree: Tree, name: str = "") -> Iterator[tuple[str, Any]]:
    """Each leaf with the way to it, such as `attention_mask` or `1.image`; a tree that is one array has no name."""
    if not isinstance(tree, dict | tuple):
        yield name, tree
        return
    for key, part in tree.items() if isinstance(tree, dict) else enumerate(tree):
        yield from named_leaves(part, f"{name}.{key}" if name else str(key))


def leaves(tree: Tree) -> list[Any]:
    """The arrays of a tree, in their order."""
    return [leaf for _, leaf in named_leaves(tree)]


def length(tree: Tree) -> int:
    """How many samples a tree has: as many as its first array."""
    while isinstance(tree, dict | tuple):
        tree = next(iter(tree.values() if isinstance(tree, dict) else tree))
    return len(tree)


def take(tree: Tree, index: Any) -> Tree:
    """Some samples of a tree: a slice of them, or those with these numbers."""
    return map_tree(lambda leaf: leaf[index], tree)


def chunks(tree: Tree, count: int) -> list[Tree]:
    """The samples of a tree in that many stretches of equal length, in their order."""
    size = length(tree) // count
    return [take(tree, slice(number * size, (number + 1) * size)) for number in range(count)]


def call(function: Callable[..., Any], inputs: Tree) -> Any:
    """What a model makes of its inputs: a tuple's parts come one after another, a dict's by their names."""
    if isinstance(inputs, dict):
        return function(**inputs)
    return function(*inputs) if isinstance(inputs, tuple) else function(inputs)


def sample_elements(tree: Tree) -> int:
    """Numbers in one sample, over all arrays."""
    total = 0
    for leaf in leaves(tree):
        elements = 1
        for size in leaf.shape[1:]:
            elements *= int(size)
        total += elements
    return total


def describe(tree: Tree) -> str:
    """The form of one sample in words: shape and type of each array, with its name where it has one."""
    if isinstance(tree, tuple) and not any(isinstance(part, tuple | dict) for part in tree):
        return f"({', '.join(map(_form, tree))})"
    return ", ".join(" ".join(filter(None, (name, _form(leaf)))) for name, leaf in named_leaves(tree))


def _form(leaf: Any) -> str:
    shape = "x".join(map(str, leaf.shape[1:])) or "one number"
    return f"{shape} {str(leaf.dtype).removeprefix('torch.')}"
