"""Layouts that are worth considering on so many devices of a system, of all that there are.

As large models are trained (Narayanan et al., "Megatron-LM", SC 2021; Liang et al., torchtitan, ICLR 2025): layers are
split within a node only, a pipeline is short and reaches over nodes, and the batch takes all other devices.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from paceline.contract.traits import Search
from paceline.layout import Layout

if TYPE_CHECKING:
    from paceline.systems.hardware import Hardware

# Parts of a layer beyond these are too small to keep a device busy, also where more devices share a fast link.
MOST_PARTS = 8
# Longer pipelines idle for longer than they save.
MOST_STAGES = 16
# Llama 3 405B was trained on sequences of 131,072 tokens over 16 devices (Dubey et al., 2024, table 4).
MOST_STRETCHES = 16


def layouts_to_try(workers: int, hardware: "Hardware") -> list[str]:
    """Layouts worth trying, as text, simple ones first; the trivial layout is left out."""
    layouts = {
        Layout(replicate=data // shard, shard=shard, tensor=tensor, pipeline=pipeline, context=context)
        for tensor in divisors(workers, min(MOST_PARTS, hardware.node_devices))
        if hardware.node_devices % tensor == 0
        for pipeline in divisors(workers // tensor, MOST_STAGES)
        for context in divisors(workers // tensor // pipeline, MOST_STRETCHES)
        for data in [workers // tensor // pipeline // context]
        for shard in divisors(data, data)
    }
    layouts.discard(Layout(shard=workers))
    return [layout.text for layout in sorted(layouts, key=_simplicity)]


def _simplicity(layout: Layout) -> tuple[int, ...]:
    return layout.context, layout.pipeline, layout.tensor, layout.replicate


def divisors(number: int, most: int) -> Iterator[int]:
    """The divisors of a number up to `most`, smallest first."""
    return (size for size in range(1, min(number, most) + 1) if number % size == 0)


LAYOUTS = Search("layout", layouts_to_try)
