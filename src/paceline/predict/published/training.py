"""Training rates that others published, beside what is predicted for the same runs: tokens per second of a device."""

import csv
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from math import exp, log
from statistics import mean
from typing import Any

from paceline.layout import Layout
from paceline.predict.estimate import Estimate
from paceline.predict.prediction import Prediction
from paceline.predict.question import Question
from paceline.spec import Scalar
from paceline.strategies import strategy
from paceline.systems.files import load_hardware
from paceline.systems.hardware import Device, Quantity

# Rows of torchtitan recompute every second product of a block: half of what `full` does beyond `selective`.
HALF = "half"


@dataclass(frozen=True)
class TrainingRow:
    """One published rate and its prediction, in tokens per second of a device."""

    table: str
    name: str
    source: str
    method: str
    published: float
    predicted: Estimate
    # Whether a number that predictions use was chosen by this row's table.
    used: bool
    # Whose programs ran it: rows of one stack are off together.
    stack: str
    # Why the run is not quite what was predicted; shown, and not counted.
    caveat: str | None = None

    @property
    def error(self) -> float:
        """Relative; above zero where the prediction is too fast."""
        return self.predicted.value / self.published - 1

    @property
    def inside(self) -> bool:
        """Whether the published rate lies in the predicted interval."""
        return self.predicted.low <= self.published <= self.predicted.high


@dataclass(frozen=True)
class TableSummary:
    """Rows of one table that were predicted by one method."""

    table: str
    method: str
    rows: int
    mean_error: float
    worst_error: float
    # The middle of all ratios, minus one: above zero where predictions are too fast.
    bias: float
    coverage: float
    # Of the intervals, above the prediction, on the mean.
    half_width: float
    used: bool
    caveat: str | None = None


@cache
def _file() -> dict[str, Any]:
    return tomllib.loads((resources.files("paceline.predict.published") / "training.toml").read_text())


def training_rows(tables: Sequence[str] = ()) -> Iterator[TrainingRow]:
    """Every published run with its prediction, of all tables or of these."""
    text = (resources.files("paceline.predict.published") / "training.csv").read_text()
    for row in csv.DictReader(text.splitlines()):
        if not tables or row["table"] in tables:
            yield _row(row)


def _row(row: dict[str, str]) -> TrainingRow:
    table, layout = _file()["tables"][row["table"]], Layout.from_text(row["layout"])
    ways = ("selective", "full") if row["recompute"] == HALF else (row["recompute"],)
    predictions = [_predict(row, layout, way) for way in ways]
    rates = [prediction.tokens_per_second for prediction in predictions]
    # The middle of two steps is that of their seconds.
    value = len(rates) / sum(1 / rate.value for rate in rates if rate is not None)
    # A stack that was looked at while predictions were improved is no unknown one.
    used = table.get("used", False)
    deviation = max(each.deviation if used else each.whole_deviation for each in predictions)
    predicted = Estimate.around(value, deviation)
    name = f"{row['model']}, {int(row['sequence']):,} tokens, {row['layout']}, {row['local_batch']} each"
    more = "".join(f", {each}" for each in (row["recompute"], row["execution"]) if each not in ("none", "eager"))
    return TrainingRow(
        row["table"], name + more, table["source"], predictions[0].source.partition(";")[0],
        float(row["tokens_per_second_per_device"]), predicted, used, table["stack"], table.get("caveat"),
    )  # fmt: skip


def _predict(row: dict[str, str], layout: Layout, recompute: str) -> Prediction:
    question = _question(row["table"], row["model"], int(row["sequence"]), row["system"])
    batch = int(row["local_batch"]) * layout.data_ranks
    name = row["strategy"]
    takes_layout = "layout" in strategy(name).needs.heeds
    knobs: dict[str, Scalar] = {"accumulation": int(row["accumulation"])}
    knobs |= {"layout": layout.text} if takes_layout else {}
    if layout.pipeline > 1:
        knobs["microbatches"] = knobs.pop("accumulation")
    knobs |= _knobs(row["knobs"])
    (spec,) = question.specs(name, {**knobs, "recompute": recompute}, (layout.workers,), [("global_batch", batch)])
    spec = spec.model_copy(update={"execution": row["execution"]})
    footprint = strategy(name).footprint(spec, question.facts)
    software = _file()["tables"][row["table"]]
    # None of these programs leaves ranks of `context` unequal work.
    how: dict[str, Any] = {"by_dtensor": software.get("dtensor", False), "context": 1}
    how |= {"cast": not software["autocast"]} if "autocast" in software else {}
    groups = (replace(group, work=replace(group.work, **how)) if group.work else group for group in footprint.groups)
    prediction = question.predictor.predict(spec, replace(footprint, groups=tuple(groups)))
    if row["execution"] != "eager" or "eager_norm_bytes" not in software:
        return prediction
    more = _norm_seconds(question, software["eager_norm_bytes"]["value"], prediction)
    return replace(prediction, parts=replace(prediction.parts, compute=prediction.parts.compute + more))


def _knobs(text: str) -> dict[str, Scalar]:
    """`schedule=interleaved;stages_per_worker=5` as names and values."""
    pairs = (pair.split("=") for pair in text.split(";") if pair)
    return {name: int(value) if value.isdigit() else value for name, value in pairs}


def _norm_seconds(question: Question, bytes_each: float, prediction: Prediction) -> float:
    """Extra seconds of RMS norms that run as several kernels: `bytes_each` more per number that passes through."""
    blocks = [layer for layer in question.facts.layers if layer.heads]
    numbers = (2 * len(blocks) + 1) * blocks[0].output_elements * prediction.spec.samples_per_step / prediction.devices
    device = question.hardware.device
    return numbers * bytes_each / (device.memory_bytes_per_second.value * device.memory_efficiency.value)


@cache
def _question(table: str, model: str, sequence: int, system: str) -> Question:
    """The model on the system, with the efficiencies of the table's software where it is older."""
    hardware, options = load_hardware(system), dict(_file()["models"][model])
    efficiencies = {name: Quantity.model_validate(value) for name, value in _file()["tables"][table].items()
                    if name in Device.model_fields}  # fmt: skip
    hardware = hardware.model_copy(update={"device": hardware.device.model_copy(update=efficiencies)})
    between_nodes = _file()["tables"][table].get("outer_bytes_per_second")
    if between_nodes is not None:
        outer = hardware.outer.model_copy(update={"bytes_per_second": Quantity.model_validate(between_nodes)})
        hardware = hardware.model_copy(update={"outer": outer})
    options.pop("source")
    return Question(hardware, workload=options.pop("workload"), options={**options, "sequence": sequence})


def summarise_tables(rows: Sequence[TrainingRow]) -> list[TableSummary]:
    """By table and method."""
    groups: dict[tuple[str, str], list[TrainingRow]] = {}
    for row in rows:
        groups.setdefault((row.table, row.method), []).append(row)
    return [
        TableSummary(
            table, method, len(group), mean(abs(row.error) for row in group), max(abs(row.error) for row in group),
            exp(mean(log(row.predicted.value / row.published) for row in group)) - 1,
            mean(row.inside for row in group), mean(row.predicted.high / row.predicted.value - 1 for row in group),
            group[0].used, group[0].caveat,
        )
        for (table, method), group in groups.items()
    ]  # fmt: skip
