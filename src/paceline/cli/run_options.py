"""The options of `paceline run` and `paceline join` ─► the study that they describe."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from paceline.cli.fields import parse_pairs, study_fields
from paceline.cli.options import Complete, On, ProgressForm, make_option
from paceline.cli.shell.completion import dataset_names, strategy_names, study_names, values_of, workload_names
from paceline.cli.terminal import Db, flag
from paceline.errors import UserError
from paceline.plan import missing_defaults
from paceline.runs.meters.energy import WATTS_VARIABLE, watts_per_core
from paceline.scale import shrink
from paceline.spec import ScriptFile
from paceline.store import DEFAULT_PATH
from paceline.strategies.unlisted.script import STRATEGY as SCRIPT
from paceline.study import Study

SCRIPT_SUFFIX = ".py"
_WHAT, _HOW = "What to run", "How"


def _what(help_text: str, metavar: str, complete: Complete | None = None) -> Any:
    return make_option(help_text, metavar, panel=_WHAT, complete=complete)


def _how(help_text: str, metavar: str, *names: str, words_of: str | None = None) -> Any:
    return make_option(help_text, metavar, *names, panel=_HOW, complete=values_of(words_of) if words_of else None)


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """What to run, how, and what to do with results that are there already."""

    study: Annotated[
        str | None,
        typer.Argument(
            help="A built-in study (see --list) or a TOML file.",
            show_default=False,
            autocompletion=study_names,
        ),
    ] = None
    workload: Annotated[str | None, _what("Built-in model(s).", "NAME,...", workload_names)] = None
    model: Annotated[str | None, _what("Your own model: a function in a file.", "FILE:FUNCTION")] = None
    option: Annotated[list[str] | None, _what("Option of the workload, such as depth=8.", "NAME=VALUE")] = None
    dataset: Annotated[str | None, _what("Data set(s).", "NAME,...", dataset_names)] = None
    dataset_copies: Annotated[str | None, _what("The data set this many times over.", "N,...")] = None
    train_samples: Annotated[str | None, _what("Only the first training samples.", "N,...")] = None
    input_shape: Annotated[str | None, _what("Shape of synthetic samples, channels first.", "CxHxW")] = None
    classes: Annotated[int | None, _what("Classes of synthetic samples.", "N")] = None
    strategy: Annotated[str | None, _what("Strategies, patterns allowed ('torch-*').", "NAME,...", strategy_names)] = (
        None
    )
    knob: Annotated[list[str] | None, _what("Setting of a strategy, such as bucket_mb=1,25.", "NAME=VALUE,...")] = None
    workers: Annotated[str | None, _what("Worker counts, such as 1,2 or 1..4.", "N,...")] = None
    layout: Annotated[list[str] | None, _what("Layout such as shard=2,tensor=2, or all; repeatable.", "NAME=N,...")] = (
        None
    )
    global_batch: Annotated[str | None, _what("Samples per step over all workers: strong scaling.", "N,...")] = None
    local_batch: Annotated[str | None, _what("Samples per step and worker: weak scaling.", "N,...")] = None
    epochs: Annotated[int | None, _what("Passes over the data.", "N")] = None
    steps: Annotated[int | None, _what("Optimizer steps, instead of epochs.", "N")] = None
    target_accuracy: Annotated[
        float | None, _what("Train until the test set comes to it; looked for on the way.", "SHARE")
    ] = None
    target_loss: Annotated[float | None, _what("The same, with the loss on the test set.", "LOSS")] = None
    repeats: Annotated[int | None, _what("Runs of each configuration.", "N")] = None
    seed: Annotated[str | None, _what("Seed(s) of weights and order.", "N,...")] = None
    optimizer: Annotated[list[str] | None, _how("Such as name=adamw, lr=0.01, schedule=cosine.", "NAME=VALUE")] = None
    accumulation: Annotated[str | None, _how("Passes of a step, over parts of its batch.", "N,...")] = None
    recompute: Annotated[
        str | None, _how("Activations computed again: none, selective, full.", "NAME,...", words_of="recompute")
    ] = None
    clip: Annotated[float | None, _how("Scale gradients down to this global norm.", "NORM")] = None
    noise_scale: Annotated[
        bool,
        typer.Option("--noise-scale", help="Measure how noisy gradients are: which batch pays.", rich_help_panel=_HOW),
    ] = False
    batch_norm: Annotated[
        str | None, _how("Statistics of batch norms: local, synchronised.", "NAME,...", words_of="batch_norm")
    ] = None
    dropout: Annotated[str | None, _how("Dropout drawn by-worker, by-sample.", "NAME,...", words_of="dropout")] = None
    precision: Annotated[str | None, _how("fp32, tf32, bf16, fp16, bf16-pure.", "NAME,...", words_of="precision")] = (
        None
    )
    reduction: Annotated[str | None, _how("Gradients added up in fp32 or bf16.", "NAME,...", words_of="reduction")] = (
        None
    )
    offload: Annotated[str | None, _how("Keep shards in the host's memory: true, false.", "BOOL,...")] = None
    execution: Annotated[
        str | None, _how("eager, compiled, graph, compiled+graph.", "NAME,...", words_of="execution")
    ] = None
    memory_format: Annotated[str | None, _how("channels_last, contiguous.", "NAME,...", words_of="memory_format")] = (
        None
    )
    device: Annotated[str | None, _how("cpu, cuda, cuda-slice.", "NAME,...", words_of="device")] = None
    slices: Annotated[int | None, _how("Cut the GPU into so many (cuda-slice).", "N")] = None
    transport: Annotated[str | None, _how("How slices talk: auto, socket.", "NAME,...", words_of="transport")] = None
    link: Annotated[str | None, _how("Between workers, such as 1gbit or 100mbit:5ms.", "RATE[:DELAY],...")] = None
    cores_per_worker: Annotated[str | None, _how("CPU cores of each worker.", "N,...")] = None
    allocator: Annotated[str | None, _how("tuned, default.", "NAME,...", words_of="allocator")] = None
    loader_workers: Annotated[str | None, _how("Processes that read batches for each worker.", "N,...")] = None
    prefetch: Annotated[str | None, _how("Batches that each of them reads ahead.", "N,...")] = None
    pin_memory: Annotated[str | None, _how("Read batches where a GPU copies from: true, false.", "BOOL,...")] = None
    checkpoint_every: Annotated[
        str | None, _how("Save model and optimizer every so many steps; timed apart.", "N,...")
    ] = None
    checkpoint_to: Annotated[Path | None, _how("Save into this folder; removed after the run.", "DIR")] = None
    membership: Annotated[
        str | None, _how("Kill a worker at a step, and have one join, such as leave:20,join:40.", "CHANGES")
    ] = None
    timeout: Annotated[str | None, _how("Time limit of one run, such as 90s or 10m.", "TIME")] = None
    data_dir: Annotated[Path | None, _how("Folder with the MNIST files.", "DIR")] = None
    watts: Annotated[
        float | None, _how("Of a busy core, where energy can only be estimated.", "W", "--watts-per-core")
    ] = None
    db: Db = DEFAULT_PATH
    scale: Annotated[str | None, make_option("The study made smaller: tiny, small or full.", "NAME")] = None
    fresh: Annotated[bool, flag("--fresh", "Repeat runs that are already stored.")] = False
    force: Annotated[bool, flag("--force", "Run also what cannot fit in this machine's memory.")] = False
    retry: Annotated[bool, flag("--retry", "Repeat stored runs that did not end well.")] = False
    breakdown: Annotated[bool, flag("--breakdown", "Also find out where the time goes, in short runs apart.")] = False
    progress: ProgressForm = "bar"

    def set_environment(self) -> None:
        """Hands worker processes the data folder and the power of a busy core; refuses a power that is none."""
        if self.data_dir is not None:
            os.environ["PACELINE_DATA"] = str(self.data_dir.resolve())
        if self.watts is not None:
            os.environ[WATTS_VARIABLE] = str(self.watts)
        watts_per_core()

    def described_study(self) -> Study:
        """The named study with the options in place of its fields, or a study made of the options alone."""
        fields = study_fields(self)
        if self.study is None and not fields:
            raise UserError(
                "nothing to run was named; give a study (paceline run quick), or options such as --strategy torch-ddp"
            )
        tables = {"knobs": parse_pairs(self.knob, "--knob"), "options": parse_pairs(self.option, "--option"),
                  "optimizer": parse_pairs(self.optimizer, "--optimizer")}  # fmt: skip
        alone = Study(name="command-line", fixed=missing_defaults(fields))
        study = alone if self.study is None else Study.load(self.study)
        study = study.with_fields(fields).with_tables(tables)
        if self.scale is not None:
            study = shrink(study, self.scale, fixed=fields)
        if self.repeats is not None:
            study = Study.parse({**study.model_dump(), "repeats": self.repeats}, "--repeats")
        return study


@dataclass(frozen=True, kw_only=True)
class RunOptions(TrainingOptions):
    """The same, and where to run it."""

    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            help="A training script (train.py) may stand for the study; its arguments follow --.", metavar="-- ARGUMENT"
        ),
    ] = None
    on: On = None
    dry_run: Annotated[
        bool, flag("--dry-run", "Print the plan and how long it will take, from a few measured steps; store nothing.")
    ] = False
    as_json: Annotated[
        bool, flag("--json", "With --dry-run: the plan as JSON; how long it takes, from stored runs alone.")
    ] = False
    list_studies: Annotated[bool, flag("--list", "List the built-in studies.")] = False

    def described_study(self) -> Study:
        """A study of a script where one is named; otherwise as the other options describe it."""
        if self.study is not None and self.study.endswith(SCRIPT_SUFFIX):
            return self._script_study(self.study)
        if self.arguments:
            raise UserError(
                f"{' '.join(self.arguments)} stands where the arguments of a script do, and {self.study} is none; "
                f"write such as paceline run train.py -- {' '.join(self.arguments)}"
            )
        return super().described_study()

    def _script_study(self, path: str) -> Study:
        """Runs of a script as it is: what it trains, and how, its own arguments decide."""
        fields = study_fields(self)
        for name in ("workload", "strategy", "dataset", "scale", "knob", "option", "optimizer"):
            if getattr(self, name) is not None:
                raise UserError(
                    f"--{name} {_words(getattr(self, name))} was given, and {path} decides that itself; leave it out, "
                    f"or hand the script an argument of its own behind --"
                )
        script = ScriptFile.from_text(path, self.arguments or ())
        # The script is measured as it is: with glibc's allocator unless another is asked for.
        study = Study(
            name=script.path.name, fixed={"script": script, "strategy": SCRIPT.name, "allocator": "default"}
        ).with_fields(fields)
        return study if self.repeats is None else study.model_copy(update={"repeats": self.repeats})


def _words(value: str | list[str]) -> str:
    return value if isinstance(value, str) else " ".join(value)
