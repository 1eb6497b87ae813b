"""Options of commands as dataclasses: a field per option, and a decorator that turns a function of them into a command.

A command with thirty options is thus a function of one value, and options that commands share are declared once.
"""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from functools import wraps
from typing import Annotated, Any, TypeVar

import typer

from paceline.cli.shell.completion import (
    dataset_names,
    network_names,
    progress_forms,
    strategy_names,
    system_names,
    workload_names,
)

Options = TypeVar("Options")
Complete = Callable[[str], list[str]]


def command_with(options: type[Options]) -> Callable[[Callable[[Options], None]], Callable[..., None]]:
    """Turns a function of one dataclass into a command with an option for each of its fields, in their order."""

    def decorate(function: Callable[[Options], None]) -> Callable[..., None]:
        @wraps(function)
        def command(**values: Any) -> None:
            function(options(**values))

        parameters = [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if field.default is MISSING else field.default,
                annotation=field.type,
            )
            for field in fields(options)  # type: ignore[arg-type]
        ]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return command

    return decorate


def make_option(
    help_text: str, metavar: str, *names: str, panel: str | None = None, complete: Complete | None = None
) -> Any:
    """One option: its help, what stands for its value, its names where they are not those of the field, its panel.

    `complete` gives the values that begin with what is typed, for a shell that completes.
    """
    return typer.Option(*names, help=help_text, metavar=metavar, rich_help_panel=panel, autocompletion=complete)


On = Annotated[
    str | None,
    make_option("Machines: local, ssh:HOST,HOST, slurm, ray, or a fleet file (docs/machines.md).", "FLEET"),
]
ProgressForm = Annotated[
    str, make_option("bar, or json: one object per line on standard error.", "FORM", complete=progress_forms)
]
MODEL_PANEL, SYSTEM_PANEL = "The model", "The system"
System = Annotated[
    str | None,
    make_option(
        "Such as 8xh100-nvlink, or a system file; this machine as calibrated.",
        "NAME",
        panel=SYSTEM_PANEL,
        complete=system_names,
    ),
]
Strategies = Annotated[
    str | None,
    make_option("Only these strategies, patterns allowed.", "NAME,...", panel=MODEL_PANEL, complete=strategy_names),
]
Network = Annotated[
    str | None,
    make_option("Between nodes: 1g, 10g, 25g, 100g, 400g.", "NAME", panel=SYSTEM_PANEL, complete=network_names),
]


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Which model is trained, and on what data."""

    workload: Annotated[
        str | None, make_option("Built-in model.", "NAME", panel=MODEL_PANEL, complete=workload_names)
    ] = None
    model: Annotated[
        str | None, make_option("Your own model: a function in a file.", "FILE:FUNCTION", panel=MODEL_PANEL)
    ] = None
    option: Annotated[
        list[str] | None, make_option("Option of the workload, such as heads=64.", "NAME=VALUE", panel=MODEL_PANEL)
    ] = None
    depth: Annotated[int | None, make_option("Short for --option depth=N.", "N", panel=MODEL_PANEL)] = None
    width: Annotated[int | None, make_option("Short for --option width=N.", "N", panel=MODEL_PANEL)] = None
    dataset: Annotated[str | None, make_option("Data set.", "NAME", panel=MODEL_PANEL, complete=dataset_names)] = None
    input_shape: Annotated[
        str | None,
        make_option("Shape of a sample, channels first; for tokens their number.", "CxHxW", panel=MODEL_PANEL),
    ] = None
    classes: Annotated[
        int | None, make_option("Classes of samples; for tokens the vocabulary.", "N", panel=MODEL_PANEL)
    ] = None


@dataclass(frozen=True, kw_only=True)
class QuestionOptions(ModelOptions):
    """Which runs on which system are asked about."""

    samples: Annotated[
        int | None, make_option("Samples of one epoch, if not the data set's own.", "N", panel=MODEL_PANEL)
    ] = None
    tokens: Annotated[
        float | None, make_option("Tokens to train on, such as 1e12, in place of samples.", "N", panel=MODEL_PANEL)
    ] = None
    precision: Annotated[
        str | None,
        make_option(
            "fp32, tf32, bf16, fp16, bf16-pure; bf16 on GPUs that have it, fp16 on older ones.",
            "NAME",
            panel=MODEL_PANEL,
        ),
    ] = None
    execution: Annotated[
        str | None,
        make_option("eager, compiled, graph, compiled+graph; tokens on GPUs compiled.", "NAME", panel=MODEL_PANEL),
    ] = None
    strategy: Strategies = None
    knob: Annotated[
        list[str] | None, make_option("Setting of a strategy, such as bucket_mb=1.", "NAME=VALUE", panel=MODEL_PANEL)
    ] = None
    optimizer: Annotated[
        list[str] | None, make_option("Such as name=sgd, lr=0.1, momentum=0.9.", "NAME=VALUE", panel=MODEL_PANEL)
    ] = None
    workers: Annotated[str, make_option("Worker counts, such as 1,2,4 or 1..8.", "N,...")] = "1..8"
    global_batch: Annotated[
        str | None, make_option("Samples per step over all workers.", "N,...", panel=MODEL_PANEL)
    ] = None
    local_batch: Annotated[str | None, make_option("Samples per step and worker.", "N,...", panel=MODEL_PANEL)] = None
    system: System = None
    network: Network = None
    link: Annotated[
        str | None,
        make_option("Between workers on cores, such as 100mbit:5ms.", "RATE[:DELAY],...", panel=SYSTEM_PANEL),
    ] = None
    price: Annotated[
        float | None, make_option("Of one device, for costs.", "MONEY", "--price-per-device-hour", panel=SYSTEM_PANEL)
    ] = None
