"""Runs that somebody logged: rows of a CSV file or records of a results file ─► run specs with measured seconds.

Each row is checked by itself; what is wrong with one is said with its number.
"""

import csv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import AliasChoices, Field, model_validator

from paceline.contract.context import spec_facts
from paceline.costs.footprint import ModelFacts
from paceline.errors import SpecError, UserError, nearest
from paceline.layout import Layout
from paceline.plan import complete
from paceline.predict.layout_costs import strategies_with_layouts
from paceline.predict.measured import measured_step
from paceline.spec import Frozen, Precision, Recompute, Reduction, RunSpec, Scalar
from paceline.store import Store
from paceline.systems.software import AttentionKernel
from paceline.user_input.paths import read_content

RESULT_SUFFIXES = (".db", ".sqlite")
MILLISECONDS = 1e-3
# A network of GPT has this many times the width of the model.
GPT_NETWORK = 4
# Names at least so alike, as difflib counts it, are taken for each other's misspelling.
MISSPELT = 0.8
# Models on several kinds of cluster may be in one file; without a name all rows are of one.
UNNAMED = "log"
# What rows that do not say so are taken for, beside the defaults of `LogRow`.
ASSUMABLE = ("precision", "recompute", "reduction", "vocabulary", "workload", "schedule", "balance")


class LogRow(Frozen):
    """One row: the model's shape, how it was spread, and what a step took."""

    width: int = Field(ge=1)
    heads: int = Field(ge=1)
    depth: int = Field(ge=1)
    sequence: int = Field(ge=1)
    gpus: int = Field(ge=1)
    global_batch: int = Field(ge=1)
    # Samples of one forward pass of a replica; it makes as many as its share of the batch needs.
    micro_batch: int = Field(ge=1)
    step_seconds: float = Field(gt=0)
    tensor: int = Field(default=1, ge=1)
    pipeline: int = Field(default=1, ge=1)
    context: int = Field(default=1, ge=1)
    shard: int = Field(default=1, ge=1)
    # Copies of the model; what is left of the GPUs where nothing is said.
    replicate: int | None = Field(default=None, ge=1, validation_alias=AliasChoices("replicate", "data"))
    workload: Literal["gpt", "llama"] = "gpt"
    vocabulary: int = Field(default=50257, ge=2)
    ffn: int | None = Field(default=None, ge=1)
    kv_heads: int | None = Field(default=None, ge=1)
    precision: Precision = "bf16"
    # Large models are logged with their blocks recomputed as a rule.
    recompute: Recompute = "full"
    # Gradients go between copies in the numbers of the passes, as Megatron-LM sends those of half precision.
    reduction: Reduction = "bf16"
    schedule: str = "1f1b"
    # Megatron-LM gives each stage as many blocks.
    balance: str = "blocks"
    # What fits better, or what the system's software has, where nothing is said.
    attention: AttentionKernel | None = None
    source: str = UNNAMED

    @model_validator(mode="before")
    @classmethod
    def _in_seconds(cls, values: Any) -> Any:
        values = dict(values)
        if "step_ms" in values:
            if "step_seconds" in values:
                raise ValueError("there are both step_ms and step_seconds; give one of them")
            try:
                values["step_seconds"] = float(values.pop("step_ms")) * MILLISECONDS
            except ValueError:
                raise ValueError("step_ms must be a number of milliseconds") from None
        return values

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if self.layout.workers != self.gpus:
            raise ValueError(
                f"layout {self.layout.text} is of {self.layout.workers} GPUs and gpus says {self.gpus}; correct one"
            )
        if self.global_batch % (self.layout.data_ranks * self.micro_batch):
            raise ValueError(
                f"global_batch {self.global_batch} is no whole number of micro-batches of {self.micro_batch} on "
                f"{self.layout.data_ranks} copies; correct one of them"
            )
        for name, size, ways in (("heads", self.heads, self.tensor), ("sequence", self.sequence, self.context)):
            if size % ways:
                raise ValueError(f"{name} {size} cannot be divided by {ways}; correct one of them")
        if self.width % self.heads:
            raise ValueError(f"width {self.width} cannot be divided into {self.heads} heads; correct one of them")
        if self.pipeline > 1 and self.depth % self.pipeline:
            raise ValueError(f"depth {self.depth} cannot be divided into {self.pipeline} equal stages; correct one")
        if self.workload == "gpt" and (self.ffn or GPT_NETWORK * self.width) != GPT_NETWORK * self.width:
            raise ValueError(f"a gpt of width {self.width} has ffn {GPT_NETWORK * self.width}; give workload llama")
        return self

    @property
    def layout(self) -> Layout:
        """The layout in which the run's GPUs divided the model."""
        others = self.tensor * self.pipeline * self.context * self.shard
        copies = self.replicate or max(1, self.gpus // others)
        return Layout(
            replicate=copies, shard=self.shard, tensor=self.tensor, pipeline=self.pipeline, context=self.context
        )

    @property
    def spec(self) -> RunSpec:
        """The run as a spec of the strategy that takes layouts."""
        layout = self.layout
        passes = self.global_batch // layout.data_ranks // self.micro_batch
        knobs: dict[str, Scalar] = {}
        if layout.pipeline > 1:
            knobs = {"microbatches": passes, "schedule": self.schedule, "balance": self.balance}
        options: dict[str, Scalar] = {"width": self.width, "heads": self.heads, "depth": self.depth,
                                      "sequence": self.sequence, "vocabulary": self.vocabulary}  # fmt: skip
        if self.workload == "llama":
            options |= {name: size for name, size in (("kv_heads", self.kv_heads), ("hidden", self.ffn)) if size}
        return complete(
            RunSpec(
                workload=self.workload, options=options, strategy=strategies_with_layouts()[0].name, layout=layout,
                workers=layout.workers, global_batch=self.global_batch, knobs=knobs, steps=1, device="cuda",
                accumulation=1 if layout.pipeline > 1 else passes, recompute=self.recompute, precision=self.precision,
                reduction=self.reduction,
            )
        )  # fmt: skip


# All that a row may say.
COLUMNS = (*LogRow.model_fields, "step_ms", "data")


@dataclass(frozen=True)
class LoggedRun:
    """A run that was made, with what its step took."""

    # Such as "row 3" or "run 17".
    name: str
    source: str
    spec: RunSpec
    step_seconds: float
    attention: AttentionKernel | None = None

    @cached_property
    def model(self) -> ModelFacts:
        """The model of the logged run in numbers."""
        return _facts(self.spec.model_dump_json(include={"workload", "options", "dataset", "input_shape", "classes"}))

    @property
    def microbatch(self) -> float:
        """Samples of one forward pass of a replica."""
        spec = self.spec
        ranks = spec.layout.data_ranks if spec.layout else spec.workers
        return spec.samples_per_step / ranks / spec.accumulation / int(spec.knobs.get("microbatches", 1))

    @property
    def group(self) -> tuple[Any, ...]:
        """What runs share that are alternatives for the same user: model, devices and global batch."""
        spec = self.spec
        return self.source, spec.workload, tuple(sorted(spec.options.items())), spec.workers, spec.samples_per_step


@lru_cache(maxsize=4096)
def _facts(text: str) -> ModelFacts:
    return spec_facts(RunSpec.model_validate_json(text[:-1] + ',"global_batch":1,"steps":1}'))


@dataclass(frozen=True)
class Log:
    """Runs that can be used, and the reasons why others cannot, by name."""

    runs: tuple[LoggedRun, ...]
    refused: dict[str, str]


def read_log(path: Path, assumed: Mapping[str, str] | None = None) -> Log:
    """Rows of a CSV file, or the good runs on GPUs of a results file. A file without any that can be used is refused.

    `assumed` fills columns that the file does not have.
    """
    if path.suffix in RESULT_SUFFIXES:
        with Store.open_existing(path) as store:
            log = _from_records(store)
    else:
        log = _from_rows(path, dict(assumed or {}))
    if not log.runs:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in list(log.refused.items())[:3])
        raise SpecError(f"{path} has no run that can be used{f' ({reasons})' if reasons else ''}")
    return log


def _from_rows(path: Path, assumed: dict[str, str]) -> Log:
    unknown = [name for name in assumed if name not in ASSUMABLE]
    if unknown:
        raise SpecError(f"{unknown[0]!r} cannot be assumed for all rows; {nearest(unknown[0], ASSUMABLE)}")
    runs: list[LoggedRun] = []
    refused: dict[str, str] = {}
    for number, values in _rows(path):
        name = f"row {number}"
        try:
            row = LogRow.parse({**assumed, **values}, f"{path.name}, {name}")
            runs.append(LoggedRun(name, row.source, row.spec, row.step_seconds, row.attention))
            _ = runs[-1].model
        except UserError as error:
            refused[name] = str(error).removeprefix(f"{path.name}, {name}: ")
    return Log(tuple(runs), refused)


def _rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Rows with their numbers in the file, where the header is row 1; empty cells say nothing."""
    try:
        text = read_content(path).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"log {path} cannot be read: {error}; give a CSV file or a results file") from None
    reader = csv.DictReader(text.splitlines())
    _check_columns(path, reader.fieldnames or ())
    for row in reader:
        cells = {name: str(value or "").strip() for name, value in row.items() if name in COLUMNS}
        yield reader.line_num, {name: value for name, value in cells.items() if value}


def _check_columns(path: Path, columns: Iterable[str]) -> None:
    columns = list(columns)
    fields = LogRow.model_fields
    needed = [name for name, field in fields.items() if field.is_required() and name != "step_seconds"]
    missing = [name for name in needed if name not in columns]
    if not {"step_ms", "step_seconds"} & set(columns):
        missing.append("step_ms (or step_seconds)")
    if missing:
        raise SpecError(f"log {path} lacks {', '.join(missing)}; its columns are {', '.join(columns) or 'none'}")
    # Logs have columns of their own, which say nothing here; one that is nearly a known name is misspelt.
    for name in columns:
        if name not in COLUMNS and get_close_matches(name, COLUMNS, n=1, cutoff=MISSPELT):
            raise SpecError(f"log {path} has a column {name!r} that is not known; {nearest(name, COLUMNS)}")


def _from_records(store: Store) -> Log:
    runs: list[LoggedRun] = []
    refused: dict[str, str] = {}
    for record in store.records():
        name, step = f"run {record.id}", measured_step(record)
        if step is None or not record.spec.is_plain or record.spec.device != "cuda":
            refused[name] = "it is no timed run on GPUs that went well"
        elif record.spec.model is not None:
            refused[name] = (
                f"{record.spec.workload} is a model of the user's own, whose layers the record does not have"
            )
        else:
            runs.append(LoggedRun(name, record.study, record.spec, step.wall_seconds))
    return Log(tuple(runs), refused)
