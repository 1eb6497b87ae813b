"""Seconds of an operation on a device: as this very one was timed, by a measured grid, or by the data sheet.

A grid is used by how much longer or shorter its operations took than the data sheet with its efficiencies says: a plane
through the nearest of these factors, over the logarithms of their sizes, gives the factor for what the data sheet says
here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import hypot, log, log2, sqrt
from typing import Literal

import numpy as np
import numpy.typing as npt

from paceline.costs.operations import NUMBER_BYTES, UPDATE_BYTES, Operation, OperationKind, OperationNumbers
from paceline.spec import Precision
from paceline.systems.hardware import Device, Hardware
from paceline.systems.operation_times import OperationTimes

Source = Literal["replayed", "grid", "data sheet"]
# Relative deviations of single operations, from timing them again and from grids whose points were left out in turn.
REPLAYED_DEVIATION, GRID_DEVIATION = 0.04, 0.12
# Of whole steps whose operations were measured, for what lies between those: 11 predictions of steps on an H200 were
# 5 % off on the mean of squares (docs/accuracy.md).
STEP_DEVIATION = 0.05
# The same of a core's grid, whose seconds were fitted to steps of models: by what is left of errors of other models,
# and so that about as many runs of benchmarks/prediction.py are in their intervals as these say.
CORE_GRID_DEVIATION = 0.06
# The name of an operation that is another's by tanh.
BY_TANH = "_tanh"
# Of large operations on the data sheet's word: what is left of the errors of 111 published training runs (`paceline
# validate`). Large is what takes ten times as long as the part that every operation takes.
DESCRIBED_DEVIATIONS: dict[OperationKind, float] = {"product": 0.05, "attention": 0.05, "memory": 0.12, "update": 0.12}
LARGE = 10
# Of layers of an LSTM on the data sheet's word, each position of which is small: one of 1,024 numbers and 256 positions
# was predicted 6 % too short on an H200, and no other was tried.
RECURRENT_DEVIATION = 0.2
# A plane is put through so many points for each of its slopes and some more; a point weighs the more the nearer it is,
# to this power of its squared distance, and no more than one that is so near.
POINTS_PER_SLOPE, POINTS_BESIDE, NEAR, POWER = 2, 4, 0.3, 2
# Slopes are held near zero where points do not say otherwise.
RIDGE = 0.02
# Beyond the points' own factors a plane is followed this far, in logarithms.
BEYOND = 0.25
# What a size that is no multiple of eight counts as, in logarithms: kernels for them are others.
ODD = 4.0
MULTIPLE = 8
# Memory-bound operations without points of their own go by these.
# A copy that puts numbers in another order, over a plain one, where it was not timed: a ResNet-50 of 128 images on an
# H200, whose norms want channels in another order than its convolutions, takes 92.8 ms, and 64.6 with plain copies.
SLOWER = {"contiguous": 4.0}
# Of what these are given and make, the share that their kernels touch: one number of each row.
READ = {"nll_loss_forward": 0.0, "nll_loss_backward": 0.5}
STAND_IN, USUAL_UPDATE = "add", "adam"
OTHER_NUMBERS: dict[OperationNumbers, tuple[OperationNumbers, ...]] = {
    "fp16": ("fp16", "bf16", "tf32", "fp32"), "bf16": ("bf16", "fp16", "tf32", "fp32"),
    "tf32": ("tf32", "fp32", "bf16"), "fp32": ("fp32", "tf32", "bf16"),
}  # fmt: skip
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Timed:
    """Seconds of one operation, where they come from, and how far they may be off, relatively."""

    seconds: float
    source: Source
    deviation: float


@dataclass
class Spread:
    """How many seconds a pass may be off.

    What was measured is off by chance, one operation this way and the next that way; a data sheet is off in all of
    them alike, as the share of the peak that kernels reach is.
    """

    alike: float = 0.0
    by_chance_squared: float = 0.0

    def add(self, timed: Timed, seconds: float) -> None:
        """One operation that takes so many seconds in all."""
        off = seconds * timed.deviation
        if timed.source == "data sheet":
            self.alike += off
        else:
            self.by_chance_squared += off * off

    @property
    def seconds(self) -> float:
        """Seconds of all operations together."""
        return self.alike + sqrt(self.by_chance_squared)


def step_deviation(off: float, sources: Mapping[Source, float], between: float = STEP_DEVIATION) -> float:
    """Relative, of a step that may be off by so many seconds, from its seconds by where they come from.

    `between` is the share for what lies between operations that were measured.
    """
    total = sum(sources.values())
    measured = total - sources.get("data sheet", 0.0)
    return hypot(off, between * measured) / total if total else 0.0


@dataclass(frozen=True)
class Grid:
    """Measured operations of one kind: logarithms of their sizes, and of measured time over data-sheet time."""

    places: Floats
    factors: Floats

    def at(self, place: Sequence[float]) -> tuple[float, float]:
        """The logarithm of the correction factor at these coordinates, and the residual of the points nearby."""
        offsets = self.places - np.asarray(place)
        squares = np.einsum("ij,ij->i", offsets, offsets)
        count = min(len(squares), POINTS_PER_SLOPE * offsets.shape[1] + POINTS_BESIDE)
        nearest = np.argpartition(squares, count - 1)[:count]
        offsets, factors = offsets[nearest], self.factors[nearest]
        if squares[nearest].min() < 1e-9:
            return float(factors[squares[nearest].argmin()]), 0.0
        weights = 1 / (NEAR**2 + squares[nearest]) ** POWER
        columns = np.hstack([np.ones((count, 1)), offsets])
        weighted = columns * weights[:, None]
        normal = columns.T @ weighted
        normal[np.diag_indices_from(normal)] += RIDGE * weights.sum() * np.array([0.0, *[1.0] * offsets.shape[1]])
        plane = np.linalg.solve(normal, weighted.T @ factors)
        errors = factors - columns @ plane
        spread = float(np.sqrt((weights * errors**2).sum() / weights.sum()))
        value = min(float(factors.max()) + BEYOND, max(float(factors.min()) - BEYOND, float(plane[0])))
        return value, spread


@dataclass(frozen=True)
class OperationTimer:
    """Seconds of operations on a system's device; each distinct one is computed once.

    `busy` slices of one GPU compute at the same time.
    """

    hardware: Hardware
    busy: float = 1.0
    _known: dict[Operation, Timed] = field(default_factory=dict)

    def timed(self, operation: Operation) -> Timed:
        """Seconds of one such operation, whatever its count."""
        timed = self._known.get(operation)
        if timed is None:
            timed = self._timed(operation)
            if self._crowding:
                timed = replace(timed, seconds=timed.seconds * self._crowded(operation))
            self._known[operation] = timed
        return timed

    @cached_property
    def _crowding(self) -> dict[str, float]:
        """Factors by kind or name for so many busy slices, between those of the numbers that were measured."""
        measured = {int(slices): factors for slices, factors in self.hardware.calibrated.operation_crowding.items()}
        if self.busy <= 1 or not measured:
            return {}
        counts = sorted({1, *measured})
        names = {name for factors in measured.values() for name in factors}
        factors_by_name = {name: [measured.get(count, {}).get(name, 1.0) for count in counts] for name in names}
        return {name: float(np.interp(self.busy, counts, factors)) for name, factors in factors_by_name.items()}

    def _crowded(self, operation: Operation) -> float:
        """By which factor an operation takes longer while other slices compute too."""
        named = _name(operation) if operation.kind == "memory" else operation.kind
        return self._crowding.get(named) or self._crowding.get(STAND_IN, 1.0)

    def was_repeated(self, operation: Operation) -> bool:
        """Whether the very call that this operation is of was repeated on the device."""
        return operation.call in self.hardware.calibrated.replayed_calls

    def _timed(self, operation: Operation) -> Timed:
        if operation.call and self.was_repeated(operation):
            return Timed(self.hardware.calibrated.replayed_calls[operation.call], "replayed", REPLAYED_DEVIATION)
        replayed = self._replayed.get(_identity(operation))
        if replayed is not None:
            return Timed(replayed + self.asking_seconds, "replayed", REPLAYED_DEVIATION)
        grid = self._grid(operation)
        if grid is not None:
            factor, spread = grid.at(place_of(operation))
            seconds = self._described(operation) * float(np.exp(factor)) * self._slower(operation)
            on_core = self.hardware.kind == "cpu"
            deviation = CORE_GRID_DEVIATION if on_core else float(np.hypot(GRID_DEVIATION, spread))
            return Timed(seconds + self.asking_seconds, "grid", deviation)
        seconds = self._described(operation) * self._slower(operation)
        return Timed(seconds + self.asking_seconds, "data sheet", self._described_deviation(operation))

    @cached_property
    def asking_seconds(self) -> float:
        """What a core takes to ask itself for an operation, beside computing it; GPUs are asked by a host meanwhile."""
        return self.hardware.device.host_seconds_per_operation["eager"].value if self.hardware.kind == "cpu" else 0.0

    def _slower(self, operation: Operation) -> float:
        """The factor by which the operation is slower than the one that stands in for it in the grid."""
        if operation.plain_name not in SLOWER or operation.plain_name in self._names:
            return 1.0
        return SLOWER[operation.plain_name]

    @cached_property
    def _names(self) -> set[str]:
        return {times.name for times in self.hardware.calibrated.operations}

    def _described_deviation(self, operation: Operation) -> float:
        """The relative uncertainty of the data sheet's estimate: lower for large operations."""
        device = self.hardware.device
        if self.hardware.kind == "cpu":
            return self.hardware.uncertainty.value
        if operation.kind == "recurrent":
            return max(self.hardware.uncertainty.value, RECURRENT_DEVIATION)
        seconds = LARGE * device.half_rate_flops.value / max(each.value for each in device.flops_per_second.values())
        large = self.least_seconds(operation) >= seconds
        usual = self.hardware.uncertainty.value
        return min(usual, DESCRIBED_DEVIATIONS.get(operation.kind, usual)) if large else usual

    def least_seconds(self, operation: Operation) -> float:
        """The lower bound given by peak arithmetic and peak bandwidth."""
        device = self.hardware.device
        moving = _moved(operation) / device.memory_bytes_per_second.value
        if operation.kind in ("memory", "update"):
            return moving
        return max(moving, operation.flops / peak_of(device, operation.numbers))

    @cached_property
    def shortest_seconds(self) -> float:
        """Seconds of an operation with next to nothing to compute."""
        device = self.hardware.device
        best = max(quantity.value for quantity in device.flops_per_second.values())
        return device.half_rate_flops.value / (best * device.product_efficiency.value)

    def _described(self, operation: Operation) -> float:
        """The larger of arithmetic and memory time, each at the share of its peak that kernels reach.

        Beside it what every operation takes, however small: by that one of `half_rate_flops` reaches half the rate.
        """
        device = self.hardware.device
        fixed = self.shortest_seconds
        moving = _moved(operation) / (device.memory_bytes_per_second.value * device.memory_efficiency.value)
        if operation.kind in ("memory", "update"):
            return moving + fixed
        share, numbers = device.product_efficiency, operation.numbers
        if operation.kind == "attention":
            # Kernels for numbers of four bytes reach nothing of what tensor cores do in TF32: 45 TFLOP/s on an H200.
            share, numbers = device.attention_efficiency, "fp32" if operation.numbers == "tf32" else operation.numbers
        rate = peak_of(device, numbers) * share.value
        return max(moving, operation.flops / rate) + self._turns(operation) * fixed

    def _turns(self, operation: Operation) -> int:
        """How many kernels of an operation follow each other: those of one position of a sequence wait for the last."""
        if operation.kind != "recurrent":
            return 1
        # On a GPU a product and a pass over its gates.
        return operation.shape[0] * (2 if self.hardware.kind == "cuda" else 1)

    @cached_property
    def _replayed(self) -> dict[tuple[object, ...], float]:
        return {
            _identity(operation): seconds
            for times in self.hardware.calibrated.replayed
            for operation, seconds in times.rows()
        }

    @cached_property
    def _tables(self) -> dict[tuple[object, ...], OperationTimes]:
        measured = self.hardware.calibrated.operations
        return {(times.kind, times.numbers, times.backward, times.sums_rows, times.name): times for times in measured}

    @cached_property
    def _grids(self) -> dict[tuple[object, ...], Grid]:
        return {}

    def _grid(self, operation: Operation) -> Grid | None:
        """Measured points of the same kind, precision and pass, or of the most similar ones."""
        name = _name(operation)
        names = {"memory": (name, name.replace(BY_TANH, ""), STAND_IN), "update": (name, USUAL_UPDATE)}.get(
            operation.kind, ("",)
        )
        for some in names:
            for numbers in OTHER_NUMBERS[operation.numbers]:
                for backward, sums_rows in _passes_like(operation):
                    key = (operation.kind, numbers, backward, sums_rows, some)
                    if key in self._tables:
                        return self._table_grid(key)
        return None

    def _table_grid(self, key: tuple[object, ...]) -> Grid:
        if key not in self._grids:
            rows = self._tables[key].rows()
            factors = [log(seconds / self._described(operation)) for operation, seconds in rows]
            places = [place_of(operation) for operation, _ in rows]
            self._grids[key] = Grid(np.array(places, dtype=float), np.array(factors, dtype=float))
        return self._grids[key]


def peak_of(device: Device, numbers: Precision) -> float:
    """Peak operations per second; numbers that the device does not list are multiplied as the next that it does."""
    offered = device.flops_per_second
    halves: tuple[Precision, ...] = ("bf16", "fp16") if numbers in ("bf16", "fp16", "bf16-pure") else ()
    order: tuple[Precision, ...] = (numbers, *halves, "tf32", "fp32")
    return next(offered[name].value for name in order if name in offered)


def _identity(operation: Operation) -> tuple[object, ...]:
    """The key of a replayed operation: everything that its kernel's time depends on."""
    named = operation.kind in ("memory", "update")
    return (operation.kind, operation.numbers, operation.backward, operation.sums_rows,
            _name(operation) if named else "", operation.shape,
            operation.moved_bytes if named else operation.flops)  # fmt: skip


def _passes_like(operation: Operation) -> tuple[tuple[bool, bool], ...]:
    """Pass and row order to look up, the operation's own first and then the most similar."""
    return (operation.backward, operation.sums_rows), (operation.backward, False), (not operation.backward, False)


def _name(operation: Operation) -> str:
    """The plain name of a memory-bound operation or update: `add` of `add_`, `adam` of `_fused_adam_`."""
    return operation.update_name if operation.kind == "update" else operation.plain_name.removesuffix("_")


def _moved(operation: Operation) -> float:
    """Bytes read and written; an in-place operation's output is counted once."""
    if operation.kind == "update":
        return operation.shape[0] * float(UPDATE_BYTES.get(_name(operation), UPDATE_BYTES[USUAL_UPDATE]))
    if operation.plain_name in READ:
        return operation.moved_bytes * READ[operation.plain_name]
    in_place = operation.kind == "memory" and operation.plain_name.endswith("_")
    return operation.moved_bytes + in_place * operation.shape[0] * NUMBER_BYTES[operation.numbers]


def place_of(operation: Operation) -> tuple[float, ...]:
    """The operation's coordinates in its grid: logarithms of the sizes its speed depends on."""
    shape = operation.shape
    if operation.kind == "product":
        batch, rows, columns, inner = shape
        # What lies side by side in memory: of gradients of weights, the columns of both factors.
        odd = ODD if columns % MULTIPLE or (rows if operation.sums_rows else inner) % MULTIPLE else 0.0
        return log2(batch), log2(rows), log2(columns), log2(inner), odd
    if operation.kind == "convolution":
        samples, inputs, height, width, outputs, kernel_height, kernel_width, stride, groups = shape
        pixels = samples * height * width / stride**2
        area = kernel_height * kernel_width
        return log2(pixels), log2(inputs / groups), log2(outputs), log2(area), log2(stride), 2 * log2(groups)
    if operation.kind == "recurrent":
        length, samples, inputs, width, directions = shape
        return log2(length), log2(samples), log2(inputs), log2(width), 2 * log2(directions)
    if operation.kind == "attention":
        samples, heads, key_heads, queries, keys, width, causal = shape
        return log2(samples * heads), log2(queries), log2(keys), log2(width), 2.0 * causal, log2(heads / key_heads)
    return (log2(max(1.0, _moved(operation))),)
