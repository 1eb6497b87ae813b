"""`paceline script`: a training script for one run, in the framework's own words."""

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from paceline.cli.fields import parse_pairs
from paceline.cli.terminal import errors
from paceline.errors import SpecError, UserError
from paceline.plan import with_defaults
from paceline.recommend.scripts import FILE_NAME, emit
from paceline.spec import ModelFile, RunSpec, Scalar
from paceline.units import parse_shape


def _option(help_text: str, metavar: str) -> Any:
    return typer.Option(help=help_text, metavar=metavar)


def script(  # noqa: PLR0913, PLR0917 - one parameter per option of the command
    strategy: Annotated[str, _option("How to train.", "NAME")],
    workers: Annotated[int, _option("On how many workers.", "N")] = 1,
    workload: Annotated[str | None, _option("Built-in model.", "NAME")] = None,
    model: Annotated[str | None, _option("Your own model: a function in a file.", "FILE:FUNCTION")] = None,
    option: Annotated[list[str] | None, _option("Option of the workload, such as depth=8.", "NAME=VALUE")] = None,
    dataset: Annotated[str | None, _option("Data set.", "NAME")] = None,
    dataset_copies: Annotated[int | None, _option("The data set this many times over.", "N")] = None,
    train_samples: Annotated[int | None, _option("Only the first training samples.", "N")] = None,
    input_shape: Annotated[str | None, _option("Shape of synthetic samples, channels first.", "CxHxW")] = None,
    classes: Annotated[int | None, _option("Classes of synthetic samples.", "N")] = None,
    knob: Annotated[list[str] | None, _option("Setting of the strategy, such as bucket_mb=10.", "NAME=VALUE")] = None,
    global_batch: Annotated[int | None, _option("Samples per step over all workers.", "N")] = None,
    local_batch: Annotated[int | None, _option("Samples per step and worker.", "N")] = None,
    epochs: Annotated[int | None, _option("Passes over the data.", "N")] = None,
    steps: Annotated[int | None, _option("Optimizer steps, instead of epochs.", "N")] = None,
    seed: Annotated[int | None, _option("Seed of weights and order.", "N")] = None,
    optimizer: Annotated[list[str] | None, _option("Such as name=sgd or lr=0.01.", "NAME=VALUE")] = None,
    precision: Annotated[str | None, _option("fp32, tf32, bf16.", "NAME")] = None,
    execution: Annotated[str | None, _option("eager, compiled.", "NAME")] = None,
    device: Annotated[str | None, _option("cpu, cuda: for the command that starts it.", "NAME")] = None,
    cores_per_worker: Annotated[int | None, _option("CPU cores of each worker.", "N")] = None,
    data_dir: Annotated[Path | None, _option("Folder with the MNIST files.", "DIR")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Write it to a file.", metavar="FILE")] = None,
) -> None:
    """A training script for one run, in PyTorch, TensorFlow or JAX alone, that needs no Paceline."""
    if data_dir is not None:
        os.environ["PACELINE_DATA"] = str(data_dir.resolve())
    given: dict[str, Any] = {
        "strategy": strategy, "workers": workers, "workload": workload, "dataset": dataset,
        "dataset_copies": dataset_copies, "train_samples": train_samples, "classes": classes,
        "global_batch": global_batch, "local_batch": local_batch, "epochs": epochs, "steps": steps, "seed": seed,
        "precision": precision, "execution": execution, "device": device, "cores_per_worker": cores_per_worker,
        "input_shape": None if input_shape is None else parse_shape(input_shape),
        "model": None if model is None else ModelFile.from_text(model),
    }  # fmt: skip
    fields = {name: value for name, value in given.items() if value is not None}
    for table, pairs in (("options", option), ("knobs", knob), ("optimizer", optimizer)):
        fields[table] = _one_of_each(pairs, f"--{table.removesuffix('s')}")
    spec = RunSpec.parse({**with_defaults(fields), **fields}, "script")
    with nullcontext() if spec.model is None else errors().status(f"looking at {spec.model.label}"):
        text = emit(spec, file_name=FILE_NAME if out is None else out.name)
    if out is None:
        typer.echo(text, nl=False)
    else:
        _write(text, out)


def _one_of_each(pairs: list[str] | None, option: str) -> dict[str, Scalar]:
    values = parse_pairs(pairs, option)
    for name, several in values.items():
        if len(several) > 1:
            raise SpecError(f"{option} {name} has {len(several)} values and a script is for one run; give one of them")
    return {name: value for name, (value,) in values.items()}


def _write(text: str, out: Path) -> None:
    try:
        out.write_text(text)
    except OSError as error:
        raise UserError(
            f"the script cannot be written to {out}: {error.strerror}; choose another place with --out"
        ) from None
    errors().print(f"wrote {out}; the commands that start it are at its top")
