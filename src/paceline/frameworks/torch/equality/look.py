"""What keeps several workers from training as one, found by trying: random draws, and losses that are no mean."""

import math
from collections.abc import Iterator, Mapping
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from paceline.data.tree import Tree, call, length, take
from paceline.frameworks.torch.equality.batch_norm import batch_norms
from paceline.frameworks.torch.equality.dropout import SampleDraws, Samples, draw_by_sample
from paceline.frameworks.torch.evaluation import Loss
from paceline.frameworks.torch.outline import is_outline

SEEDS = (1, 2)
# Of single precision, with sums in another order.
TOLERANCE = 1e-4


def drawing_facts(module: nn.Module, inputs: Tree) -> dict[str, Any]:
    """Facts named as those of `UserModelFacts`; norms of the model have other statistics afterwards."""
    if is_outline(module):
        # There are no numbers to compare: layers with a rate draw by it.
        return {"draws": any(_rate(child) > 0 for child in module.modules()), "draws_by_sample": False}
    module.train()
    first, second = (_outputs(module, inputs, seed) for seed in SEEDS)
    if _alike(first, second):
        return {"draws": False, "draws_by_sample": False}
    return {"draws": True, "draws_by_sample": _is_by_sample(module, inputs)}


def weighs_samples(module: nn.Module, loss: Loss, inputs: Tree, targets: Tree) -> bool:
    """Whether the loss of samples is something else than the mean of their losses, such as a mean over all tokens.

    Workers average their losses, and so train otherwise with it than one worker does.
    """
    if is_outline(module):
        return False
    module.eval()
    places = [slice(0, length(inputs))] * 2 + [slice(number, number + 1) for number in range(length(inputs))]
    try:
        with torch.no_grad():
            losses = [float(loss(call(module, take(inputs, place)), take(targets, place))) for place in places]
    except Exception:
        # A loss of pairs of samples has none of one.
        return False
    together, again, *alone = losses
    return together == again and not math.isclose(together, fmean(alone), rel_tol=TOLERANCE, abs_tol=TOLERANCE)


def _rate(layer: nn.Module) -> float:
    """The share that a dropout, or an attention with one, drops."""
    rate = getattr(layer, "p" if isinstance(layer, _DropoutNd) else "dropout", 0.0)
    return rate if isinstance(rate, float) else 0.0


def _is_by_sample(module: nn.Module, inputs: Tree) -> bool:
    """Whether a sample's outputs are the same beside others as alone, drawn by its place among them."""
    draw_by_sample()
    for name in batch_norms(module):
        # What they take of other samples is not what is looked for.
        module.get_submodule(name).eval()
    draws, count = SampleDraws(0, torch.device("cpu")), length(inputs)
    with draws.of(1, Samples(0, count, count)):
        together = _outputs(module, inputs)
    alone = []
    for number in range(count):
        with draws.of(1, Samples(number, 1, count)):
            alone.append(_outputs(module, take(inputs, slice(number, number + 1))))
    columns = list(zip(together, *alone, strict=True))
    # A model may leave out the dimension of a single sample.
    of_samples = [
        (whole.flatten(), torch.cat([part.flatten() for part in parts]))
        for whole, *parts in columns
        if whole.ndim and len(whole) == count
    ]
    # One that gives its loss alone gives the mean over its samples.
    means = [(whole, torch.stack(parts).mean()) for whole, *parts in columns if not whole.ndim]
    pairs = of_samples or means
    return bool(pairs) and all(
        whole.shape == parts.shape and torch.allclose(whole, parts, rtol=TOLERANCE, atol=TOLERANCE)
        for whole, parts in pairs
    )


def _outputs(module: nn.Module, inputs: Tree, seed: int | None = None) -> list[Tensor]:
    if seed is not None:
        torch.manual_seed(seed)
    with torch.no_grad():
        return [tensor.float() for tensor in _tensors(call(module, inputs))]


def _tensors(outputs: Any) -> Iterator[Tensor]:
    """All tensors of what a model returned: alone, in lists and dicts, or as attributes of an object."""
    if isinstance(outputs, Tensor):
        yield outputs
    elif isinstance(outputs, Mapping | list | tuple):
        for part in outputs.values() if isinstance(outputs, Mapping) else outputs:
            yield from _tensors(part)
    else:
        parts = getattr(outputs, "__dict__", {}).values()
        yield from _tensors([part for part in parts if isinstance(part, Tensor | Mapping | list | tuple)])


def _alike(first: list[Tensor], second: list[Tensor]) -> bool:
    # What is no number is as little of one by chance.
    pairs = zip(first, second, strict=True)
    return all(torch.equal(sooner.nan_to_num(), later.nan_to_num()) for sooner, later in pairs)
