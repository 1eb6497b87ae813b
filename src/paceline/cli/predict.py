"""`paceline predict`: time, memory, energy and cost of runs that were not made, with intervals."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from rich.markup import escape
from rich.table import Table

from paceline.cli.options import QuestionOptions, Strategies, command_with, make_option
from paceline.cli.question import make_question, print_warnings
from paceline.cli.terminal import AsJson, Db, output, plain_table, print_json
from paceline.errors import SpecError
from paceline.predict.prediction import Estimate, Prediction
from paceline.predict.question import Question
from paceline.store import DEFAULT_PATH
from paceline.units import format_about, format_bytes, format_money, format_percent, format_seconds

# Parts of a step and their headings; a part below `LEAST_SHARE` everywhere has no column.
PARTS = {"compute": "com-\npute", "exposed": "ex-\nposed", "bubble": "bub-\nble", "waiting": "wait-\ning"}
LEAST_SHARE = 0.01


@dataclass(frozen=True, kw_only=True)
class PredictOptions(QuestionOptions):
    """What is predicted, and how it is shown."""

    strategy: Strategies = "torch-ddp"
    workers: Annotated[str, make_option("Worker counts, such as 1,2,4 or 1..8.", "N,...")] = "1,2,4,8"
    db: Db = DEFAULT_PATH
    as_json: AsJson = False


@command_with(PredictOptions)
def predict(options: PredictOptions) -> None:
    """Predicts time, memory, energy and cost of runs on this machine or another, each with a 90 % interval."""
    question = make_question(options)
    predictions, refused = predict_all(question)
    if not predictions:
        name, reason = next(iter(refused.items()))
        raise SpecError(f"nothing can be predicted: {name}: {reason}")
    if options.as_json:
        print_json([prediction_values(prediction) for prediction in predictions])
        return
    print_warnings(question, options.db)
    _print(question, predictions, refused)


def predict_all(question: Question) -> tuple[list[Prediction], dict[str, str]]:
    """Predictions of all runs that can be made, and the reasons why others cannot."""
    predictions, refused = [], {}
    for name in question.names():
        for spec in question.specs(name):
            reason = question.why_not(spec)
            if reason is not None:
                refused[f"{name} x{spec.workers}"] = reason
            else:
                predictions.append(question.predictor.predict(spec))
    return predictions, refused


def prediction_values(prediction: Prediction) -> dict[str, Any]:
    """A prediction as values that JSON can hold; every estimate with its interval."""

    def ends(estimate: Estimate | None) -> dict[str, float] | None:
        return None if estimate is None else vars(estimate)

    spec = prediction.spec
    return {
        "strategy": spec.strategy, "workers": spec.workers, "global_batch": spec.samples_per_step,
        "knobs": spec.knobs, "parts": vars(prediction.parts), "step_seconds": ends(prediction.step_seconds),
        "samples_per_second": ends(prediction.samples_per_second), "epoch_seconds": ends(prediction.epoch_seconds),
        "speedup": prediction.speedup, "efficiency": prediction.efficiency,
        "memory_bytes": ends(prediction.memory_bytes), "memory_limit_bytes": prediction.memory_limit_bytes,
        "fits": prediction.fits,
        "joules_per_epoch": ends(prediction.joules_per_epoch), "cost_per_epoch": ends(prediction.cost_per_epoch),
        "source": prediction.source, "kind": "predicted",
    }  # fmt: skip


def _print(question: Question, predictions: Sequence[Prediction], refused: dict[str, str]) -> None:
    console, hardware = output(), question.hardware
    first = predictions[0].spec
    console.print(
        f"\n[bold]{escape(first.workload)}[/] ({question.facts.parameters:,} parameters) on "
        f"[bold]{escape(hardware.name)}[/], {first.precision}: predicted, with 90 % intervals"
    )
    console.print(_step_table(predictions))
    console.print()
    console.print(_epoch_table(predictions))
    console.print(f"[dim]computation from {escape(predictions[0].source)}; {escape(hardware.about)}[/]")
    if not all(prediction.fits for prediction in predictions):
        console.print(f"[red]no[/]: a worker has {format_bytes(predictions[0].memory_limit_bytes)}")
    for name, reason in refused.items():
        console.print(f"[yellow]left out[/] {escape(name)}: {escape(reason)}")


def _step_table(predictions: Sequence[Prediction]) -> Table:
    """A table of steps and their parts."""
    parts = [name for name in PARTS if any(_share(prediction, name) >= LEAST_SHARE for prediction in predictions)]
    table = _table("step", "samples/s", "90 %", "effi-\nciency", *(PARTS[part] for part in parts))
    for prediction in predictions:
        table.add_row(
            *_name(prediction), format_seconds(prediction.parts.step),
            format_about(prediction.samples_per_second.value), _ends(prediction.samples_per_second, format_about),
            "–" if prediction.efficiency is None else format_percent(prediction.efficiency),
            *(format_percent(_share(prediction, part)) for part in parts),
        )  # fmt: skip
    return table


def _epoch_table(predictions: Sequence[Prediction]) -> Table:
    """A table of the time, memory, energy and cost of an epoch."""
    priced = any(prediction.cost_per_epoch for prediction in predictions)
    table = _table("epoch", "90 %", "memory", "fits", "J per\nepoch", *(["cost per\nepoch"] if priced else []))
    for prediction in predictions:
        table.add_row(
            *_name(prediction), format_seconds(prediction.epoch_seconds.value),
            _ends(prediction.epoch_seconds, format_seconds),
            format_bytes(prediction.memory_bytes.value), "yes" if prediction.fits else "[red]no[/]",
            format_about(prediction.joules_per_epoch.value),
            *([format_money(prediction.cost_per_epoch.value)] if prediction.cost_per_epoch else []),
        )  # fmt: skip
    return table


def _table(*headers: str) -> Table:
    return plain_table("strategy", "wor-\nkers", "batch", *headers, least_width=10)


def _name(prediction: Prediction) -> tuple[str, str, str]:
    return escape(prediction.spec.strategy), str(prediction.spec.workers), f"{prediction.spec.samples_per_step:,}"


def _ends(estimate: Estimate, form: Callable[[float], str]) -> str:
    return f"{form(estimate.low)} – {form(estimate.high)}"


def _share(prediction: Prediction, part: str) -> float:
    return float(getattr(prediction.parts, part)) / prediction.parts.step
