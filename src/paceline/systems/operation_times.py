"""Measured seconds of operations, as a calibration keeps them: by kind, numbers and pass, over shapes."""

from paceline.costs.operations import OperationKind, OperationNumbers
from paceline.spec import Frozen


class OperationTimes(Frozen):
    """Seconds of operations that are alike but for their shapes, which are those of `costs.operations`."""

    kind: OperationKind
    numbers: OperationNumbers
    backward: bool = False
    # As the framework calls it; the optimizer's name for an update.
    name: str = ""
    shapes: tuple[tuple[int, ...], ...]
    seconds: tuple[float, ...]
    flops: tuple[float, ...]
    moved_bytes: tuple[float, ...]
