"""How PyTorch lays out a model's arrays, cuts them over ranks and sends them: pure numbers, PyTorch is not imported.

Bytes were compared with the loopback counters of a network namespace for gloo in PyTorch 2.13.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import count, pairwise, takewhile

from paceline.costs.footprint import ModelFacts
from paceline.costs.layers import LayerFacts
from paceline.costs.messages import Message
from paceline.spec import RunSpec


@dataclass(frozen=True)
class Array:
    """A parameter as PyTorch sees it: `rows` along its first dimension, each of `row` numbers."""

    rows: int
    row: int

    @property
    def size(self) -> int:
        """How many numbers it holds."""
        return self.rows * self.row

    def shard(self, ranks: int, rank: int) -> int:
        """Numbers in one rank's shard: rows in equal chunks, so that the last ranks may get fewer or none."""
        chunk = math.ceil(self.rows / ranks)
        return max(0, min(chunk, self.rows - rank * chunk)) * self.row

    def padded(self, ranks: int) -> int:
        """Numbers that travel when all shards are filled up to the size of the first."""
        return math.ceil(self.rows / ranks) * ranks * self.row


def arrays_of(layers: Iterable[LayerFacts]) -> list[Array]:
    """The parameters of some layers; a layer of which only counts are known passes for a single row."""
    return [array for layer in layers for array in _arrays_of_layer(layer)]


@lru_cache(maxsize=4096)
def _arrays_of_layer(layer: LayerFacts) -> tuple[Array, ...]:
    arrays = []
    for name, shape in layer.arrays or (("all", (layer.parameters,)),):
        # Kernels are stored inputs first in the neutral layout and outputs first in PyTorch.
        rows = shape[-1] if name.endswith("kernel") else shape[0]
        if rows:
            arrays.append(Array(rows, math.prod(shape) // rows))
    return tuple(arrays)


def shard_runs(arrays: Iterable[Array], shards: int) -> list[tuple[int, int]]:
    """Ranks in order that hold as much as each other: how many, and numbers in the shard of each."""
    alike = Counter(arrays)
    chunks = [(array, math.ceil(array.rows / shards)) for array in alike]
    # Behind its last full chunk an array may have one that is not full, and then none.
    edges = {edge for array, chunk in chunks for edge in (array.rows // chunk, math.ceil(array.rows / chunk))}
    cuts = sorted({0, shards, *(edge for edge in edges if edge < shards)})
    return [
        (end - start, sum(array.shard(shards, start) * count for array, count in alike.items()))
        for start, end in pairwise(cuts)
    ]


def greedy_partition(model: ModelFacts, ranks: int) -> list[list[Array]]:
    """Whole parameters dealt out as `ZeroRedundancyOptimizer` does: the largest first, each to the emptiest rank."""
    parts: list[list[Array]] = [[] for _ in range(ranks)]
    sizes = [0] * ranks
    for array in sorted(arrays_of(model.layers), key=lambda array: array.size, reverse=True):
        emptiest = sizes.index(min(sizes))
        parts[emptiest].append(array)
        sizes[emptiest] += array.size
    return parts


def broadcast(spec: RunSpec, name: str, payload_bytes: float, ranks: int, place: int) -> tuple[Message, ...]:
    """One rank's part in a broadcast; `place` counts from the root. Gloo has a binomial tree, NCCL a chain."""
    if ranks == 1 or not payload_bytes:
        return ()
    if spec.device == "cpu":
        reach = takewhile(lambda distance: place + distance < ranks, (1 << level for level in count()))
        sends = sum(place < distance for distance in reach)
    else:
        sends = int(place < ranks - 1)
    received = payload_bytes if place else 0
    return (Message(name, "broadcast", payload_bytes, sends * payload_bytes, received, ranks=ranks),)
