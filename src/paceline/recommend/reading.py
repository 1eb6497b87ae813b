"""What reading data adds to a predicted step, from earlier runs of the model, and how many processes would hide it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import log

from paceline.predict.prediction import Prediction
from paceline.record import Loading, Record
from paceline.runs.loading import keeping_up, processes_text, slowest_loading
from paceline.spec import RunSpec
from paceline.strategies import strategy, strategy_of_stored
from paceline.units import format_rate, format_seconds


@dataclass(frozen=True)
class Reading:
    """Seconds in which one process read a batch of so many samples, and the run that they were measured in."""

    seconds: float
    samples: int
    record: int

    def seconds_of(self, samples: int) -> float:
        """What another batch would take, in proportion."""
        return self.seconds * samples / self.samples


def readings_of(asked_about: RunSpec, records: Sequence[Record]) -> tuple[Reading, ...]:
    """What runs of the same model tell of reading its data, the newest first."""
    readings = []
    for record in reversed(records):
        spec, chosen = record.spec, strategy_of_stored(record.spec.strategy)
        same = spec.model and asked_about.model and spec.model.digest == asked_about.model.digest
        loading = slowest_loading([rank.loading for rank in record.ranks])
        if same and chosen and record.id is not None and loading is not None and loading.read_seconds is not None:
            samples = spec.samples_per_step // chosen.traits.replicas(spec)
            readings.append(Reading(loading.read_seconds, samples, record.id))
    return tuple(readings)


def explain_reading(readings: Sequence[Reading], prediction: Prediction) -> Iterator[str]:
    """Says what reading would cost the predicted run; nothing where it is not known, or hardly anything."""
    if not readings:
        return
    spec, step = prediction.spec, prediction.parts.step
    replicas = strategy(spec.strategy).traits.replicas(spec)
    samples = spec.samples_per_step // replicas
    # A batch costs something of its own, whatever its size: the one nearest in size tells most.
    reading = min(readings, key=lambda measured: abs(log(measured.samples / samples)))
    seconds = reading.seconds_of(samples)
    alone = Loading(processes=0, wait_seconds=seconds, step_seconds=step + seconds, read_seconds=seconds)
    source = f"from run {reading.record}; the prediction leaves reading out"
    if alone.limits and seconds > step:
        most = f"with one process for each worker, {format_rate(replicas * samples / seconds)} samples/s at most"
        yield f"Reading data, not the strategy, would set the pace: {most}; {keeping_up(alone, spec)} ({source})."
    elif alone.limits:
        yield (
            f"Reading a batch takes one process {format_seconds(seconds)}, which {processes_text(1)} for each worker "
            f"would hide (--loader-workers 1; {source})."
        )
