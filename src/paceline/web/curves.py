"""Curves of the run that is going on: loss, samples/s, cores or GPUs, memory; each with a bounded number of points."""

from dataclasses import dataclass, field
from typing import Any

from paceline.units import format_bytes, format_percent, format_rate

# More than a small drawing can show; beyond this half of the points go.
MOST_POINTS = 120


@dataclass
class Curve:
    """Points of one quantity in the order of x, evenly spaced once there are many; the newest is always there."""

    points: list[tuple[float, float]] = field(default_factory=list)
    # Points nearer to each other than this cannot be told apart in the drawing.
    _spacing: float = 0.0

    def add(self, x: float, y: float | None) -> None:
        """Adds a point at the end; what is unknown or not finite leaves a gap."""
        if y is None:
            return
        if len(self.points) > 1 and self.points[-1][0] - self.points[-2][0] < self._spacing:
            self.points.pop()
        self.points.append((round(x, 3), y))
        if len(self.points) > MOST_POINTS:
            self._spacing = 2 * (self.points[-1][0] - self.points[0][0]) / MOST_POINTS
            kept = self.points[:1]
            for point in self.points[1:-1]:
                if point[0] - kept[-1][0] >= self._spacing:
                    kept.append(point)
            self.points = [*kept, self.points[-1]]

    def replace(self, beyond: float, points: list[tuple[float, float]]) -> None:
        """Puts these points in the place of all that come after an x."""
        self.points = [point for point in self.points if point[0] <= beyond]
        for x, y in points:
            self.add(x, y)


@dataclass
class RunCurves:
    """The curves of one run, from its events."""

    # Optimizer steps of the whole run; None where it ends by itself.
    steps: int | None = None
    loss: Curve = field(default_factory=Curve)
    rate: Curve = field(default_factory=Curve)
    cores: Curve = field(default_factory=Curve)
    gpus: Curve = field(default_factory=Curve)
    memory: Curve = field(default_factory=Curve)
    gpu_memory: Curve = field(default_factory=Curve)
    done_steps: int = 0
    # Steps before the epoch that goes on, and the last epoch whose losses are known.
    _before: int = 0
    _epoch: int = 0
    _known_losses: int = -1
    # The newest use of each machine.
    _uses: dict[int, dict[str, Any]] = field(default_factory=dict)

    @property
    def share_done(self) -> float:
        """How much of the run is done, by steps; 0 where their number is not known."""
        return min(1.0, self.done_steps / self.steps) if self.steps else 0.0

    def progress(self, event: dict[str, Any], seconds: float) -> None:
        """A step or an epoch ended."""
        self._epoch = event["epoch"]
        self.rate.add(seconds, event["samples_per_second"])
        if event.get("kind") == "epoch":
            self._before += event["steps"]
            self._epoch += 1
            self.done_steps = self._before
        elif "step" in event:
            self.done_steps = self._before + event["step"]
            self.loss.add(self.done_steps, event.get("loss"))

    def losses(self, event: dict[str, Any]) -> None:
        """The losses of an epoch are known; each process of several may tell its own, of which the first counts."""
        epoch, steps, losses = event["epoch"], event["steps"], event["losses"]
        if epoch <= self._known_losses or not losses:
            return
        self._known_losses = epoch
        start = self._before if epoch >= self._epoch else self._before - steps
        spacing = steps / len(losses)
        known = [(start + (number + 1) * spacing, loss) for number, loss in enumerate(losses) if loss is not None]
        self.loss.replace(start, known)

    def use(self, event: dict[str, Any], seconds: float) -> None:
        """What the processes use; several machines are added up once each has told."""
        newest = event["machine"] == max(self._uses, default=event["machine"])
        self._uses[event["machine"]] = event
        if not newest:
            return
        uses = list(self._uses.values())
        self.cores.add(seconds, sum(use["cpu_cores"] for use in uses))
        self.memory.add(seconds, sum(use["memory_bytes"] for use in uses))
        shares = [use["gpu_share"] for use in uses if use["gpu_share"] is not None]
        held = [use["gpu_memory_bytes"] for use in uses if use["gpu_memory_bytes"] is not None]
        self.gpus.add(seconds, sum(shares) / len(shares) if shares else None)
        self.gpu_memory.add(seconds, sum(held) if held else None)

    def values(self) -> list[dict[str, Any]]:
        """What the page draws: name, value now, range in words, points; the GPUs' own in place of the host's."""
        on_gpus = bool(self.gpus.points)
        drawn = [
            ("loss", "steps", self.loss, lambda value: f"{value:.3g}"),
            ("samples/s", "seconds", self.rate, format_rate),
            ("GPU use", "seconds", self.gpus, format_percent) if on_gpus
            else ("cores in use", "seconds", self.cores, lambda value: f"{value:.1f}"),
            ("GPU memory", "seconds", self.gpu_memory, format_bytes) if self.gpu_memory.points
            else ("memory", "seconds", self.memory, format_bytes),
        ]  # fmt: skip
        return [
            {
                "name": name, "along": along, "points": curve.points, "now": text(curve.points[-1][1]),
                "low": text(min(y for _, y in curve.points)), "high": text(max(y for _, y in curve.points)),
            }
            for name, along, curve, text in drawn
            if curve.points
        ]  # fmt: skip
