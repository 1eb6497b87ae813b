"""Options that `calibrate`, `predict` and `recommend` share ─► a `Question`."""

from pathlib import Path
from typing import Any, cast, get_args

from rich.markup import escape

from paceline.cli.fields import parse_pairs, split_words
from paceline.cli.options import ModelOptions, QuestionOptions
from paceline.cli.terminal import errors
from paceline.errors import SpecError, nearest
from paceline.link import NO_LINK, NetworkLink
from paceline.plan import expand_strategies
from paceline.predict.question import Question
from paceline.predict.self_check import self_check
from paceline.spec import Execution, ModelFile, Precision, RunSpec
from paceline.systems.files import load_hardware
from paceline.systems.hardware import LOCAL
from paceline.units import parse_shape, parse_whole_numbers
from paceline.workloads import workload


def model_fields(options: ModelOptions) -> dict[str, Any]:
    """The fields of a `Question` that say what is trained."""
    sizes = {"depth": options.depth, "width": options.width}
    if options.workload is not None:
        workload(options.workload)
    return {
        "workload": options.workload or "mnist-small",
        "model": ModelFile.from_text(options.model) if options.model is not None else None,
        "options": {name: values[0] for name, values in parse_pairs(options.option, "--option").items()}
        | {name: size for name, size in sizes.items() if size is not None},
        "dataset": options.dataset,
        "input_shape": parse_shape(options.input_shape) if options.input_shape is not None else None,
        "classes": options.classes,
    }


def make_question(options: QuestionOptions) -> Question:
    """The question that the options describe."""
    workers = tuple(parse_whole_numbers(options.workers, "--workers"))
    if min(workers) < 1:
        raise SpecError(f"--workers {options.workers} has a count below 1; write such as 1..8")
    if options.tokens is not None and (options.tokens < 1 or options.samples is not None):
        raise SpecError(f"--tokens {options.tokens:g} must be at least 1, and without --samples; write such as 1e12")
    optimizer = {name: values[0] for name, values in parse_pairs(options.optimizer, "--optimizer").items()}
    # What is wrong with it is said before anything else is.
    RunSpec.parse({"global_batch": 1, "steps": 1, "optimizer": optimizer}, "the question")
    precisions = [check_precision(name) for name in split_words(options.precision or "")]
    return Question(
        hardware=load_hardware(options.system, options.network),
        **model_fields(options),
        strategies=tuple(expand_strategies(split_words(options.strategy))) if options.strategy is not None else (),
        knobs={name: values[0] for name, values in parse_pairs(options.knob, "--knob").items()},
        optimizer=optimizer,
        workers=workers,
        global_batches=_batches(options.global_batch, "--global-batch"),
        local_batches=_batches(options.local_batch, "--local-batch"),
        precision=precisions[0] if precisions else None,
        other_precisions=tuple(precisions[1:]),
        execution=_execution(options.execution),
        samples=options.samples,
        tokens=options.tokens,
        price_per_device_hour=options.price,
        links=tuple(map(_link, split_words(options.link or ""))) or (None,),
    )


def _link(text: str) -> NetworkLink | None:
    try:
        return None if text == NO_LINK else NetworkLink.from_text(text)
    except ValueError as error:
        raise SpecError(str(error)) from None


def check_precision(name: str) -> Precision:
    """The precision of that name."""
    if name not in get_args(Precision):
        raise SpecError(f"--precision {name!r} is unknown; {nearest(name, get_args(Precision))}")
    return cast("Precision", name)


def _execution(name: str | None) -> Execution | None:
    if name is not None and name not in get_args(Execution):
        raise SpecError(f"--execution {name!r} is unknown; {nearest(name, get_args(Execution))}")
    return cast("Execution | None", name)


def print_warnings(question: Question, db: Path) -> None:
    """Says when numbers are those of another machine, and when predictions do not match what was measured here."""
    if question.hardware.kind == "cpu" and question.hardware.name != LOCAL:
        errors().print(f"[dim]this machine is not calibrated; numbers are for {question.hardware.about}[/]")
    if warning := self_check(question, db):
        errors().print(f"[yellow]{escape(warning)}[/]")


def _batches(text: str | None, what: str) -> tuple[int, ...]:
    sizes = tuple(parse_whole_numbers(text, what)) if text is not None else ()
    if sizes and min(sizes) < 1:
        raise SpecError(f"{what} {text} has a size below 1; write such as 64,256")
    return sizes
