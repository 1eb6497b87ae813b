"""Options that `calibrate`, `predict` and `recommend` share ─► a `Question`."""

from typing import Annotated, Any

import typer

from paceline.cli.fields import parse_pairs
from paceline.cli.terminal import errors
from paceline.errors import SpecError, nearest
from paceline.plan import expand_strategies
from paceline.predict.question import Question
from paceline.spec import ModelFile
from paceline.systems.files import load_hardware
from paceline.systems.hardware import LOCAL
from paceline.units import parse_shape, parse_whole_numbers
from paceline.workloads import workload as workload_named

PRECISIONS = ("fp32", "tf32", "bf16")


def _option(help_text: str, metavar: str, *names: str, panel: str = "The model") -> Any:
    return typer.Option(*names, help=help_text, metavar=metavar, rich_help_panel=panel)


_SYSTEM = "The system"
Workload = Annotated[str | None, _option("Built-in model.", "NAME")]
Model = Annotated[str | None, _option("Your own model: a function in a file.", "FILE:FUNCTION")]
Option = Annotated[list[str] | None, _option("Option of the workload, such as heads=64.", "NAME=VALUE")]
Depth = Annotated[int | None, _option("Short for --option depth=N.", "N")]
Width = Annotated[int | None, _option("Short for --option width=N.", "N")]
Dataset = Annotated[str | None, _option("Data set.", "NAME")]
InputShape = Annotated[str | None, _option("Shape of a sample, channels first; for tokens their number.", "CxHxW")]
Classes = Annotated[int | None, _option("Classes of samples; for tokens the vocabulary.", "N")]
Samples = Annotated[int | None, _option("Samples of one epoch, if not the data set's own.", "N")]
Precision = Annotated[str | None, _option("fp32, tf32 or bf16; bf16 on GPUs that have it.", "NAME")]
System = Annotated[
    str | None,
    _option("Such as 8xh100-nvlink, or a system file; this machine as calibrated.", "NAME", panel=_SYSTEM),
]
Network = Annotated[str | None, _option("Between nodes: 1g, 10g, 25g, 100g, 400g.", "NAME", panel=_SYSTEM)]
Price = Annotated[float | None, _option("Of one device, for costs.", "MONEY", "--price-per-device-hour", panel=_SYSTEM)]
Strategies = Annotated[str | None, _option("Only these strategies, patterns allowed.", "NAME,...", "--strategy")]
Knobs = Annotated[list[str] | None, _option("Setting of a strategy, such as bucket_mb=1.", "NAME=VALUE", "--knob")]
GlobalBatch = Annotated[str | None, _option("Samples per step over all workers.", "N,...")]
LocalBatch = Annotated[str | None, _option("Samples per step and worker.", "N,...")]


def about_the_model(
    workload: str | None,
    model: str | None,
    option: list[str] | None,
    depth: int | None,
    width: int | None,
    dataset: str | None,
    input_shape: str | None,
    classes: int | None,
) -> dict[str, Any]:
    """Fields of a `Question` that say what is trained."""
    options = {name: values[0] for name, values in parse_pairs(option, "--option").items()}
    options |= {name: size for name, size in (("depth", depth), ("width", width)) if size is not None}
    if workload is not None:
        workload_named(workload)
    return {
        "workload": workload or "mnist-small",
        "model": ModelFile.from_text(model) if model is not None else None,
        "options": options,
        "dataset": dataset,
        "input_shape": parse_shape(input_shape) if input_shape is not None else None,
        "classes": classes,
    }


def make_question(*, workers: str | None, system: str | None, network: str | None, **given: Any) -> Question:
    """From the words of the command line; what is wrong is said in one sentence."""
    counts = parse_whole_numbers(workers, "--workers") if workers is not None else [1]
    if min(counts) < 1:
        raise SpecError(f"--workers {workers} has a count below 1; write such as 1..8")
    if given["precision"] is not None and given["precision"] not in PRECISIONS:
        raise SpecError(f"--precision {given['precision']!r} is unknown; {nearest(given['precision'], PRECISIONS)}")
    hardware = load_hardware(system, network)
    names = ("workload", "model", "option", "depth", "width", "dataset", "input_shape", "classes")
    return Question(
        hardware=hardware,
        **about_the_model(*(given[name] for name in names)),
        strategies=tuple(expand_strategies(_words(given["strategy"]))) if given["strategy"] is not None else (),
        knobs={name: values[0] for name, values in parse_pairs(given["knob"], "--knob").items()},
        workers=tuple(counts),
        global_batches=_sizes(given["global_batch"], "--global-batch"),
        local_batches=_sizes(given["local_batch"], "--local-batch"),
        precision=given["precision"],
        samples=given["samples"],
        price_per_device_hour=given["price"],
    )


def say_if_unmeasured(question: Question) -> None:
    """That numbers for cores are those of another machine until this one is calibrated."""
    if question.hardware.kind == "cpu" and question.hardware.name != LOCAL:
        errors().print(f"[dim]this machine is not calibrated; numbers are for {question.hardware.about}[/]")


def _sizes(text: str | None, what: str) -> tuple[int, ...]:
    found = tuple(parse_whole_numbers(text, what)) if text is not None else ()
    if found and min(found) < 1:
        raise SpecError(f"{what} {text} has a size below 1; write such as 64,256")
    return found


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]
