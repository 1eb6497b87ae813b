"""Layouts that are worth predicting on so many devices of a system, of the hundreds that there are.

As large models are trained (Narayanan et al., "Megatron-LM", SC 2021; Liang et al., torchtitan, ICLR 2025): layers are
split within a node only, a pipeline is short and reaches over nodes, and the batch takes all other devices.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from paceline.contract.traits import Search
from paceline.layout import Layout
from paceline.spec import Scalar

if TYPE_CHECKING:
    from paceline.systems.hardware import Hardware

# Parts of a layer beyond these are too small to keep a device busy, also where more devices share a fast link.
MOST_PARTS = 8
# Longer pipelines idle for longer than they save.
MOST_STAGES = 16
# Nodes over which one copy is divided, where there are more of them and copies may be.
NODES_OF_A_COPY = (1, 8)
# Micro-batches for each rank of a pipeline beside the usual number: more of them leave it idle for less of the time.
ROUNDS = (4, 16)


def layouts_to_try(workers: int, hardware: "Hardware") -> list[str]:
    """Layouts as they are written, without the one that stands for no layout: all devices divide the model."""
    node = hardware.node_devices
    found = {
        _with_copies(data, copy, tensor=tensor, pipeline=pipeline)
        for tensor in _divisors(workers, min(MOST_PARTS, node))
        if node % tensor == 0
        for pipeline in _divisors(workers // tensor, MOST_STAGES)
        for data in [workers // tensor // pipeline]
        for copy in _devices_of_a_copy(data, max(1, node // tensor))
    }
    found.discard(Layout(shard=workers))
    return [layout.text for layout in sorted(found, key=lambda layout: (layout.pipeline, layout.tensor, layout.text))]


def _with_copies(data: int, copy: int, **others: int) -> Layout:
    return Layout(replicate=data // copy, shard=copy, **others)


def _devices_of_a_copy(data: int, of_a_node: int) -> Iterator[int]:
    """Over how many of the devices that share the batch a copy is divided: none, some nodes, or all."""
    yield from (1, data)
    for nodes in NODES_OF_A_COPY:
        if data % (of_a_node * nodes) == 0:
            yield of_a_node * nodes


def _divisors(number: int, most: int) -> list[int]:
    return [size for size in range(1, most + 1) if number % size == 0]


def microbatches_of(layout: Scalar) -> Iterable[dict[str, Scalar]]:
    """More micro-batches than usual, where the layout has a pipeline."""
    ranks = Layout.from_text(str(layout)).pipeline
    return ({"microbatches": rounds * ranks} for rounds in ROUNDS if ranks > 1)


LAYOUTS = Search("layout", layouts_to_try, then_with=microbatches_of)
