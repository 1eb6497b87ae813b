"""How often to save for a stated rate of failures, and what share of the time is lost at it.

J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974; J. T. Daly, "A higher
order estimate of the optimum checkpoint interval for restart dumps", FGCS 22(3), 2006. Failures come at random, each
takes the training back to the last checkpoint, and a start anew takes its time.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import ceil, exp, inf, sqrt
from statistics import median

from paceline.analysis.checkpoints import summarise_checkpoints
from paceline.costs.footprint import Footprint, ModelFacts
from paceline.errors import SpecError
from paceline.recommend.answer import Answer
from paceline.record import Record
from paceline.spec import RunSpec
from paceline.strategies import strategy
from paceline.units import format_bytes, format_count, format_days, format_seconds

SECONDS_PER_DAY = 86_400.0
# What one NVMe drive of a server writes in the long run; taken where no rate is stated.
DISK_BYTES_PER_SECOND = 1e9
# What a checkpoint depends on; neither batch nor length of a run are among it.
_SAVED_FIELDS = ("workload", "model", "options", "strategy", "knobs", "workers", "layout", "precision", "device")


@dataclass(frozen=True)
class Failures:
    """How often training is interrupted: by all devices together, or by each of them."""

    per_day: float | None = None
    device_seconds: float | None = None
    # What the disk of a machine writes in a second, where it is stated.
    disk_bytes_per_second: float | None = None

    @classmethod
    def of(cls, per_day: float | None, device_seconds: float | None, disk: float | None) -> "Failures | None":
        """What options say; None where they say nothing of failures."""
        if per_day is None and device_seconds is None:
            if disk is not None:
                raise SpecError("--disk says how fast checkpoints are written; give --failures-per-day too")
            return None
        if per_day is not None and device_seconds is not None:
            raise SpecError("--failures-per-day and --device-mtbf both say how often training fails; give one of them")
        for name, value in (("--failures-per-day", per_day), ("--device-mtbf", device_seconds), ("--disk", disk)):
            if value is not None and not 0 < value < inf:
                raise SpecError(f"{name} {value:g} is out of range; it must be more than 0")
        return cls(per_day, device_seconds, disk)

    def mean_seconds(self, devices: int) -> float:
        """The mean time between failures of so many devices together."""
        if self.per_day is not None:
            return SECONDS_PER_DAY / self.per_day
        assert self.device_seconds is not None
        return self.device_seconds / devices


def best_interval(save_seconds: float, mean_seconds: float) -> float:
    """Seconds of training from one save to the next at which least time is lost, to the first order (Young)."""
    return sqrt(2 * save_seconds * mean_seconds)


def lost_share(interval: float, save_seconds: float, restart_seconds: float, mean_seconds: float) -> float:
    """The share of the time that is no progress: saving, computing again, starting anew (Daly's complete model)."""
    exponent = (interval + save_seconds) / mean_seconds + restart_seconds / mean_seconds
    if exponent > 500:  # beyond floating point; no interval is ever finished
        return 1.0
    segment = mean_seconds * exp(restart_seconds / mean_seconds) * (exp((interval + save_seconds) / mean_seconds) - 1)
    return 1 - interval / segment


@dataclass(frozen=True)
class SavingAdvice:
    """How often to save, and where the numbers behind it come from."""

    mean_seconds_between_failures: float
    checkpoint_bytes: float
    save_seconds: float
    # Loading, and for measured runs all from the start of the processes to the end of the first step.
    restart_seconds: float
    step_seconds: float
    # Numbers of the runs in which it was measured; none where it is predicted from bytes and the rate of a disk.
    records: tuple[int, ...]
    disk_bytes_per_second: float

    @property
    def steps(self) -> int:
        """Steps from one save to the next."""
        interval = best_interval(self.save_seconds, self.mean_seconds_between_failures)
        return max(1, round(interval / self.step_seconds))

    @property
    def interval_seconds(self) -> float:
        """Seconds of these steps."""
        return self.steps * self.step_seconds

    @property
    def lost(self) -> float:
        """The share of the time that is lost at that interval."""
        return lost_share(
            self.interval_seconds, self.save_seconds, self.restart_seconds, self.mean_seconds_between_failures
        )

    @property
    def sentence(self) -> str:
        """The advice in words."""
        if self.records:
            runs = f"run {self.records[0]}" if len(self.records) == 1 else f"{len(self.records)} runs"
            basis = f"measured in {runs}"
        else:
            basis = f"predicted, at {format_bytes(self.disk_bytes_per_second)}/s of a machine's disk"
        return (
            f"Save every {format_count(self.steps, 'step')} ({format_seconds(self.interval_seconds)}): with a failure "
            f"every {format_days(self.mean_seconds_between_failures)} and {format_seconds(self.save_seconds)} for a "
            f"checkpoint of {format_bytes(self.checkpoint_bytes)} ({basis}), {100 * self.lost:.2g} % of the time is "
            f"lost to saving, computing again and starting anew (Young 1974; Daly 2006)."
        )


def advise_saving(answer: Answer, failures: Failures, records: Iterable[Record]) -> SavingAdvice | str | None:
    """The advice for the pick; a sentence where its strategy cannot save, None where there is no pick."""
    pick = answer.pick
    if pick is None:
        return None
    chosen = strategy(pick.spec.strategy)
    if "checkpoint_every" not in chosen.needs.heeds:
        return f"How often to save is not known: {chosen.name} cannot save in the middle of training."
    mean_seconds = failures.mean_seconds(pick.prediction.devices)
    step_seconds = pick.spec.samples_per_step / pick.prediction.samples_per_second.value
    disk = failures.disk_bytes_per_second or DISK_BYTES_PER_SECOND
    saving = list(_like(pick.spec, records)) if failures.disk_bytes_per_second is None else []
    if saving:
        cost = summarise_checkpoints(saving, None)
        assert cost.checkpoint_bytes is not None and cost.checkpoint_save_seconds is not None
        restart = median(record.startup.total_seconds if record.startup else 0.0 for record in saving)
        numbers = tuple(record.id for record in saving if record.id is not None)
        return SavingAdvice(
            mean_seconds, cost.checkpoint_bytes, cost.checkpoint_save_seconds,
            restart + (cost.checkpoint_load_seconds or 0.0), step_seconds, numbers, disk,
        )  # fmt: skip
    total, on_a_machine = predicted_bytes(pick.spec, answer.question.facts, answer.question.hardware.node_devices)
    seconds = on_a_machine / disk
    return SavingAdvice(mean_seconds, total, seconds, seconds, step_seconds, (), disk)


def _like(spec: RunSpec, records: Iterable[Record]) -> Iterator[Record]:
    """Runs that made checkpoints of the same model, divided in the same way."""
    fields = spec.model_dump(mode="json", include=set(_SAVED_FIELDS))
    for record in records:
        has_saved = record.ok and any(rank.checkpoint for rank in record.ranks)
        if has_saved and record.spec.model_dump(mode="json", include=set(_SAVED_FIELDS)) == fields:
            yield record


def predicted_bytes(spec: RunSpec, facts: ModelFacts, node_devices: int) -> tuple[float, float]:
    """Bytes of a checkpoint, and those that the disk of the busiest machine takes, from the strategy's footprint."""
    chosen = strategy(spec.strategy)
    footprint = chosen.footprint(spec, facts)
    here = min(spec.workers, node_devices)
    machines = ceil(spec.workers / here)
    if chosen.traits.saved_by == "all":
        whole = _whole(footprint)
        return whole * spec.workers, whole * here
    if chosen.traits.saved_by == "first":
        whole = _whole(footprint)
        return whole, whole
    if chosen.traits.saved_by == "optimizer_parts":
        total = footprint.groups[0].parameter_bytes + sum(
            group.ranks * group.optimizer_bytes for group in footprint.groups
        )
        return total, total / machines
    layout = chosen.traits.layout(spec)
    copies = layout.replicate if layout is not None else chosen.traits.replicas(spec)
    total = sum(group.ranks * (group.parameter_bytes + group.optimizer_bytes) for group in footprint.groups) / copies
    return total, total / ceil(machines / copies)


def _whole(footprint: Footprint) -> float:
    """Model and optimizer where one worker holds both, or servers hold them together."""
    servers = [group for group in footprint.groups if group.role == "server"]
    holding = servers or footprint.groups[:1]
    ranks = [group.ranks if servers else 1 for group in holding]
    return sum(
        count * (group.parameter_bytes + group.optimizer_bytes) for count, group in zip(ranks, holding, strict=True)
    )
