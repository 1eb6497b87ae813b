"""Measured seconds of operations, as a calibration keeps them: by kind, numbers and pass, over shapes."""

from dataclasses import replace
from typing import Self

from pydantic import model_validator

from paceline.costs.operations import Operation, OperationKind, OperationNumbers, operation_of
from paceline.spec import Frozen


class OperationTimes(Frozen):
    """Seconds of operations that differ only in their shapes (see `costs.operations`)."""

    kind: OperationKind
    numbers: OperationNumbers
    backward: bool = False
    sums_rows: bool = False
    # As the framework calls it; the optimizer's name for an update.
    name: str = ""
    shapes: tuple[tuple[int, ...], ...]
    seconds: tuple[float, ...]
    # Empty where the shapes say it.
    flops: tuple[float, ...] = ()
    moved_bytes: tuple[float, ...] = ()

    @model_validator(mode="after")
    def _that_go_together(self) -> Self:
        columns = {len(self.shapes), len(self.seconds), *(len(each) for each in (self.flops, self.moved_bytes) if each)}
        try:
            # Shapes of one length are read alike.
            for shape in {len(shape): shape for shape in self.shapes}.values() if not self.flops else ():
                self._derived(shape)
        except ValueError:
            columns.add(-1)
        if len(columns) > 1 or bool(self.flops) != bool(self.moved_bytes) or min(self.seconds, default=1.0) <= 0:
            raise ValueError(
                f"operations of kind {self.kind} have shapes, seconds and bytes that do not go together; "
                f"run paceline calibrate again"
            )
        return self

    def rows(self) -> list[tuple[Operation, float]]:
        """Each operation and its seconds."""
        if not self.flops:
            return [(self._derived(shape), seconds) for shape, seconds in zip(self.shapes, self.seconds, strict=True)]
        columns = zip(self.shapes, self.flops, self.moved_bytes, self.seconds, strict=True)
        return [
            (replace(self._alike, shape=shape, flops=flops, moved_bytes=moved), seconds)
            for shape, flops, moved, seconds in columns
        ]

    @property
    def _alike(self) -> Operation:
        return Operation(
            self.kind, self.numbers, (), 0.0, 0.0, self.name, backward=self.backward, sums_rows=self.sums_rows
        )

    def _derived(self, shape: tuple[int, ...]) -> Operation:
        return operation_of(self.kind, self.numbers, shape, backward=self.backward, sums_rows=self.sums_rows)

    @classmethod
    def of_rows(cls, rows: list[tuple[Operation, float]]) -> "OperationTimes":
        """The times of operations that differ only in their shapes, sorted by shape."""
        rows = sorted(rows, key=lambda row: (row[0].shape, row[0].moved_bytes))
        first = rows[0][0]
        derived = all(_is_derived(operation) for operation, _ in rows)
        return cls(
            kind=first.kind, numbers=first.numbers, backward=first.backward, sums_rows=first.sums_rows,
            name=first.plain_name,
            shapes=tuple(operation.shape for operation, _ in rows),
            seconds=tuple(seconds for _, seconds in rows),
            flops=() if derived else tuple(operation.flops for operation, _ in rows),
            moved_bytes=() if derived else tuple(operation.moved_bytes for operation, _ in rows),
        )  # fmt: skip


def _is_derived(operation: Operation) -> bool:
    """Whether everything about the operation follows from its shape."""
    if operation.kind in ("memory", "update") or operation.name:
        return False
    plain = replace(operation, count=1)
    return plain == operation_of(
        plain.kind, plain.numbers, plain.shape, backward=plain.backward, sums_rows=plain.sums_rows
    )
