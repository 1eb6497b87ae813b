"""Predictions beside numbers that others published: how well several devices scale, given what one of them does."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import combinations
from statistics import mean, median
from typing import Any

from paceline.costs.footprint import ModelFacts
from paceline.costs.layers import LayerFacts
from paceline.predict.prediction import Predictor
from paceline.spec import Precision, RunSpec
from paceline.systems.files import load_hardware
from paceline.systems.hardware import Hardware, Link, Quantity

# Where a source says nothing of a device but how fast it trains, this one's other numbers stand in.
BASE_SYSTEM = "v100-pcie"
# Predicted for the device that the rest of a row is then scaled to.
PRECISION: Precision = "fp32"


@dataclass(frozen=True)
class PublishedRow:
    """One number of others', as a share of ideal scaling, and what is predicted for it."""

    name: str
    source: str
    published: float
    predicted: float
    # The source leaves open what was trained, or how it was fed: shown, and not counted.
    stand_in: bool

    @property
    def error(self) -> float:
        """Relative."""
        return self.predicted / self.published - 1


@dataclass(frozen=True)
class PublishedSummary:
    """All rows that count."""

    rows: int
    mean_error: float
    median_error: float
    worst_error: float
    order_kept: float


def published_rows() -> list[PublishedRow]:
    """Every published number with its prediction."""
    return [_row(row) for row in _file()["rows"]]


@cache
def _file() -> dict[str, Any]:
    return tomllib.loads((resources.files("paceline.predict.published") / "scaling.toml").read_text())


def _row(row: dict[str, Any]) -> PublishedRow:
    model = _model(row["model"])
    hardware = _system(row["system"], model, row["local_batch"], row["single_samples_per_second"])
    predictor = Predictor(hardware, model, row["local_batch"])
    spec = RunSpec(
        workload=row["model"], strategy=row["strategy"], workers=row["workers"], local_batch=row["local_batch"],
        steps=1, device="cuda", precision=PRECISION, knobs=row.get("knobs", {}), dataset="synthetic",
    )  # fmt: skip
    fewer = {
        "workers": row.get("against_workers", 1),
        "local_batch": row.get("against_local_batch", row["local_batch"]),
    }
    if fewer["workers"] == 1:
        efficiency = predictor.predict(spec).efficiency or 0.0
    else:
        efficiency = _rate_each(predictor, spec) / _rate_each(predictor, spec.model_copy(update=fewer))
    return PublishedRow(row["name"], row["source"], row["efficiency"], efficiency, row.get("stand_in", False))


def _rate_each(predictor: Predictor, spec: RunSpec) -> float:
    """Samples per second of each worker."""
    return predictor.predict(spec).samples_per_second.value / spec.workers


def _model(name: str) -> ModelFacts:
    table = _file()["models"][name]
    layers = [
        LayerFacts(f"{label}-{number}", parameters, flops, outputs, tensors=2, arrays=(("kernel", (1, parameters)),))
        for label, count, parameters, flops, outputs in table["layers"]
        for number in range(count)
    ]
    return ModelFacts(tuple(layers), table["input_elements"])


def _system(name: str, model: ModelFacts, local_batch: int, single_samples_per_second: float) -> Hardware:
    """The system as the source describes it, with the single-device speed that the source states."""
    table, base = _file()["systems"][name], load_hardware(BASE_SYSTEM)
    links = {
        side: Link(
            bytes_per_second=Quantity(value=table[f"{side}_bytes_per_second"], source=table["source"]),
            latency_seconds=getattr(base, side).latency_seconds,
        )
        for side in ("inner", "outer")
    }
    plain = base.model_copy(update={"node_devices": table["node_devices"], **links})
    # What hosts take is part of the given rate.
    device = plain.device.model_copy(update={"host_seconds_per_operation": {}})
    plain = plain.model_copy(update={"device": device})
    alone = RunSpec(local_batch=local_batch, steps=1, device="cuda", dataset="synthetic")
    predicted = Predictor(plain, model, local_batch).predict(alone).samples_per_second.value
    # Computing and moving numbers are both scaled, so that one device does what the source says.
    factor = single_samples_per_second / predicted
    rates = {
        precision: Quantity(value=peak.value * factor, source=table["source"])
        for precision, peak in device.flops_per_second.items()
    }
    memory = Quantity(value=device.memory_bytes_per_second.value * factor, source=table["source"])
    scaled = device.model_copy(update={"flops_per_second": rates, "memory_bytes_per_second": memory})
    return plain.model_copy(update={"device": scaled})


def summarise_published(rows: Sequence[PublishedRow]) -> PublishedSummary:
    """Errors of all rows, and the share of pairs whose order was predicted correctly."""
    counted = [row for row in rows if not row.stand_in]
    errors = [abs(row.error) for row in counted]
    pairs = [(row, other) for row, other in combinations(counted, 2) if row.published != other.published]
    kept = mean((row.published < other.published) == (row.predicted < other.predicted) for row, other in pairs)
    return PublishedSummary(len(counted), mean(errors), median(errors), max(errors), kept)
