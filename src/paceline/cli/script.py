"""`paceline script`: a training script for one run that uses the framework alone."""

import os
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli.fields import parse_pairs
from paceline.cli.options import command_with, make_option
from paceline.cli.shell.completion import strategy_names, workload_names
from paceline.cli.terminal import errors
from paceline.errors import SpecError, user_can_choose
from paceline.plan import missing_defaults
from paceline.recommend.scripts import FILE_NAME, emit
from paceline.spec import ModelFile, RunSpec, Scalar
from paceline.units import parse_shape


@dataclass(frozen=True, kw_only=True)
class ScriptOptions:
    """The run that the script is for, and where it is written."""

    strategy: Annotated[str, make_option("How to train.", "NAME", complete=strategy_names)]
    workers: Annotated[int | None, make_option("On how many workers; one, or those of the layout.", "N")] = None
    layout: Annotated[str | None, make_option("Layout such as shard=2,tensor=2.", "NAME=N,...")] = None
    workload: Annotated[str | None, make_option("Built-in model.", "NAME", complete=workload_names)] = None
    model: Annotated[str | None, make_option("Your own model: a function in a file.", "FILE:FUNCTION")] = None
    option: Annotated[list[str] | None, make_option("Option of the workload, such as depth=8.", "NAME=VALUE")] = None
    dataset: Annotated[str | None, make_option("Data set.", "NAME")] = None
    dataset_copies: Annotated[int | None, make_option("The data set this many times over.", "N")] = None
    train_samples: Annotated[int | None, make_option("Only the first training samples.", "N")] = None
    input_shape: Annotated[str | None, make_option("Shape of synthetic samples, channels first.", "CxHxW")] = None
    classes: Annotated[int | None, make_option("Classes of synthetic samples.", "N")] = None
    knob: Annotated[list[str] | None, make_option("Setting of the strategy, such as bucket_mb=10.", "NAME=VALUE")] = (
        None
    )
    global_batch: Annotated[int | None, make_option("Samples per step over all workers.", "N")] = None
    local_batch: Annotated[int | None, make_option("Samples per step and worker.", "N")] = None
    epochs: Annotated[int | None, make_option("Passes over the data.", "N")] = None
    steps: Annotated[int | None, make_option("Optimizer steps, instead of epochs.", "N")] = None
    seed: Annotated[int | None, make_option("Seed of weights and order.", "N")] = None
    optimizer: Annotated[
        list[str] | None, make_option("Such as name=adamw, lr=0.01, schedule=cosine.", "NAME=VALUE")
    ] = None
    accumulation: Annotated[int | None, make_option("Passes of a step, over parts of its batch.", "N")] = None
    recompute: Annotated[str | None, make_option("Activations computed again: none, selective, full.", "NAME")] = None
    clip: Annotated[float | None, make_option("Scale gradients down to this global norm.", "NORM")] = None
    precision: Annotated[str | None, make_option("fp32, tf32, bf16.", "NAME")] = None
    execution: Annotated[str | None, make_option("eager, compiled.", "NAME")] = None
    device: Annotated[str | None, make_option("cpu, cuda: for the command that starts it.", "NAME")] = None
    cores_per_worker: Annotated[int | None, make_option("CPU cores of each worker.", "N")] = None
    data_dir: Annotated[Path | None, make_option("Folder with the MNIST files.", "DIR")] = None
    out: Annotated[Path | None, typer.Option("--out", help="Write it to a file.", metavar="FILE")] = None


@command_with(ScriptOptions)
def script(options: ScriptOptions) -> None:
    """A training script for one run, in PyTorch, TensorFlow or JAX alone, that needs no Paceline."""
    if options.data_dir is not None:
        os.environ["PACELINE_DATA"] = str(options.data_dir.resolve())
    spec = _spec(options)
    with nullcontext() if spec.model is None else errors().status(f"looking at {spec.model.label}"):
        text = emit(spec, file_name=FILE_NAME if options.out is None else options.out.name)
    if options.out is None:
        typer.echo(text, nl=False)
    else:
        with user_can_choose(f"the script cannot be written to {options.out}", "place with --out"):
            options.out.write_text(text)
        errors().print(f"wrote {options.out}; the commands that start it are at its top")


def _spec(options: ScriptOptions) -> RunSpec:
    """The run that the options describe, with defaults for what they leave open."""
    fields = {
        name: value for name, value in vars(options).items() if name in RunSpec.model_fields and value is not None
    }
    if options.input_shape is not None:
        fields["input_shape"] = parse_shape(options.input_shape)
    if options.model is not None:
        fields["model"] = ModelFile.from_text(options.model)
    for table, pairs in (("options", options.option), ("knobs", options.knob), ("optimizer", options.optimizer)):
        fields[table] = _one_of_each(pairs, f"--{table.removesuffix('s')}")
    return RunSpec.parse({**missing_defaults(fields), **fields}, "script")


def _one_of_each(pairs: list[str] | None, option: str) -> dict[str, Scalar]:
    values = parse_pairs(pairs, option)
    for name, several in values.items():
        if len(several) > 1:
            raise SpecError(f"{option} {name} has {len(several)} values and a script is for one run; give one of them")
    return {name: value for name, (value,) in values.items()}
