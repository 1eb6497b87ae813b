"""What reading data adds to a predicted step, from earlier runs of the model, and how many processes would hide it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from paceline.predict.prediction import Prediction
from paceline.record import Loading, Record
from paceline.runs.loading import keeping_up, processes_text, slowest_loading
from paceline.spec import RunSpec
from paceline.strategies import strategy, strategy_of_stored
from paceline.units import format_seconds


@dataclass(frozen=True)
class Reading:
    """Seconds that one process takes to read a sample, and the run that they were measured in."""

    sample_seconds: float
    record: int


def reading_of(asked_about: RunSpec, records: Sequence[Record]) -> Reading | None:
    """What the newest run of the same model tells of reading its data; None where no run read any."""
    for record in reversed(records):
        spec, chosen = record.spec, strategy_of_stored(record.spec.strategy)
        same = spec.model and asked_about.model and spec.model.digest == asked_about.model.digest
        loading = slowest_loading([rank.loading for rank in record.ranks])
        if same and chosen and record.id is not None and loading is not None and loading.read_seconds is not None:
            return Reading(loading.read_seconds * chosen.traits.replicas(spec) / spec.samples_per_step, record.id)
    return None


def explain_reading(reading: Reading | None, prediction: Prediction) -> Iterator[str]:
    """Says what reading would cost the predicted run; nothing where it is not known, or hardly anything."""
    if reading is None:
        return
    spec, step = prediction.spec, prediction.parts.step
    seconds = reading.sample_seconds * spec.samples_per_step / strategy(spec.strategy).traits.replicas(spec)
    alone = Loading(processes=0, wait_seconds=seconds, step_seconds=step + seconds, read_seconds=seconds)
    source = f"from run {reading.record}; the prediction leaves reading out"
    if alone.limits and seconds > step:
        yield f"Reading data, not the strategy, would set the pace: {keeping_up(alone, spec)} ({source})."
    elif alone.limits:
        yield (
            f"Reading a batch takes one process {format_seconds(seconds)}, which {processes_text(1)} for each worker "
            f"would hide (--loader-workers 1; {source})."
        )
