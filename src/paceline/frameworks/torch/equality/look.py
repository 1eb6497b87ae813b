"""Whether a model draws random numbers while it trains, and whether those can be drawn by sample: found by trying."""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from paceline.data.tree import Tree, call, length, take
from paceline.frameworks.torch.equality.batch_norm import batch_norms
from paceline.frameworks.torch.equality.dropout import SampleDraws, Samples, draw_by_sample

SEEDS = (1, 2)
# Of single precision, with sums in another order.
TOLERANCE = 1e-4


def drawing_facts(module: nn.Module, inputs: Tree) -> dict[str, Any]:
    """Facts named as those of `UserModelFacts`."""
    module = copy.deepcopy(module).train()
    first, second = (_outputs(module, inputs, seed) for seed in SEEDS)
    if _alike(first, second):
        return {"draws": False, "draws_by_sample": False}
    return {"draws": True, "draws_by_sample": _is_by_sample(module, inputs)}


def drops_out(module: nn.Module) -> bool:
    """Whether it has layers that drop numbers out; of a model without numbers no more can be said."""
    return any(
        getattr(child, "p", 0) > 0 for child in module.modules() if isinstance(child, nn.modules.dropout._DropoutNd)
    )


def _is_by_sample(module: nn.Module, inputs: Tree) -> bool:
    """Whether a sample's outputs are the same beside others as alone, drawn by its place among them."""
    draw_by_sample()
    for name in batch_norms(module):
        # What they take of other samples is not what is looked for.
        module.get_submodule(name).eval()
    draws, count = SampleDraws(0, torch.device("cpu")), length(inputs)
    with draws.of(1, Samples(0, count, count)):
        together = _outputs(module, inputs)
    for number in range(count):
        with draws.of(1, Samples(number, 1, count)):
            alone = _outputs(module, take(inputs, slice(number, number + 1)))
        of_samples = [
            (whole[number : number + 1], part)
            for whole, part in zip(together, alone, strict=True)
            if whole.ndim and len(whole) == count
        ]
        if not of_samples or not all(torch.allclose(*pair, rtol=TOLERANCE, atol=TOLERANCE) for pair in of_samples):
            return False
    return True


def _outputs(module: nn.Module, inputs: Tree, seed: int | None = None) -> list[Tensor]:
    if seed is not None:
        torch.manual_seed(seed)
    with torch.no_grad():
        return [tensor.float() for tensor in _tensors(call(module, inputs))]


def _tensors(outputs: Any) -> Iterator[Tensor]:
    """All tensors of what a model returned."""
    if isinstance(outputs, Tensor):
        yield outputs
    elif isinstance(outputs, Mapping | list | tuple):
        for part in outputs.values() if isinstance(outputs, Mapping) else outputs:
            yield from _tensors(part)


def _alike(first: list[Tensor], second: list[Tensor]) -> bool:
    return all(torch.equal(*pair) for pair in zip(first, second, strict=True))
