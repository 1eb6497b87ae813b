"""Which server keeps which variable, in numbers alone: footprints and the chief count with the same rule.

Variables stay whole, however large, because Keras 3 does not take the sharded ones of `variable_partitioner`.
"""

import math
from collections.abc import Iterable, Sequence

from paceline.costs.footprint import FLOAT_BYTES, ModelFacts

Shape = tuple[int, ...]
# Indices of samples travel in 64 bits; a worker answers with three numbers: loss, staleness, who it is.
INDEX_BYTES = 8
ANSWER_BYTES = 3 * FLOAT_BYTES


class ServerAssignment:
    """Assigns variables to servers: the largest first, each to the server that has least."""

    def __init__(self, servers: int, known: Iterable[Shape] = ()) -> None:
        self.bytes = [0] * servers
        self._waiting: dict[Shape, list[int]] = {}
        for shape in sorted(known, key=math.prod, reverse=True):
            self._waiting.setdefault(shape, []).append(self._lightest(math.prod(shape) * FLOAT_BYTES))

    def place(self, shape: Shape, size_bytes: int) -> int:
        """The server for a variable that is made now; counters and the like, which have no shape, go to the first."""
        if not shape:
            return 0
        waiting = self._waiting.get(shape)
        return waiting.pop(0) if waiting else self._lightest(size_bytes)

    def _lightest(self, size_bytes: int) -> int:
        server = self.bytes.index(min(self.bytes))
        self.bytes[server] += size_bytes
        return server


def server_bytes(model: ModelFacts, servers: int) -> Sequence[int]:
    """Bytes of parameters on each server."""
    return ServerAssignment(servers, shapes_of(model)).bytes


def shapes_of(model: ModelFacts) -> list[Shape]:
    """The shape of every array of the model."""
    return [shape for layer in model.layers for _, shape in layer.arrays]
