"""`paceline predict`: time, memory, energy and cost of runs that were not made, with intervals."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, get_args

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from paceline.cli.options import QuestionOptions, Strategies, command_with, make_option
from paceline.cli.question import make_question, print_warnings
from paceline.cli.terminal import AsJson, Db, output, plain_table, print_json
from paceline.errors import SpecError, nearest
from paceline.layout import Layout, all_layouts
from paceline.predict.estimate import Estimate
from paceline.predict.prediction import Prediction
from paceline.predict.question import Question
from paceline.spec import Recompute
from paceline.store import DEFAULT_PATH
from paceline.study import ALL_LAYOUTS
from paceline.units import format_about, format_bytes, format_days, format_money, format_percent, format_seconds

# Parts of a step and their headings; a part below `LEAST_SHARE` everywhere has no column.
PARTS = {"compute": "com-\npute", "exposed": "ex-\nposed", "bubble": "bub-\nble", "waiting": "wait-\ning"}
LEAST_SHARE = 0.01
LEAST_WIDTH = 10
TOKENS = "tokens/s\neach"
# How a peak of memory was predicted, as `MemoryNeed` names it, in words.
MEMORY_METHODS = {"traced": "of a traced step", "counted": "counted from the layers"}
# Headings of what stands beside a name.
WORKERS, BATCH, LINK = "wor-\nkers", "batch", "link"


@dataclass(frozen=True, kw_only=True)
class PredictOptions(QuestionOptions):
    """What is predicted, and how it is shown."""

    strategy: Strategies = "torch-ddp"
    workers: Annotated[str, make_option("Worker counts, such as 1,2,4 or 1..8.", "N,...")] = "1,2,4,8"
    layout: Annotated[
        list[str] | None,
        make_option("Layout such as shard=2,tensor=2, or all; repeatable.", "NAME=N,..."),
    ] = None
    accumulation: Annotated[int, make_option("Passes of a step, over parts of its batch.", "N")] = 1
    recompute: Annotated[str, make_option("Activations computed again: none, selective, full.", "NAME")] = "none"
    offload: Annotated[str, make_option("Keep shards in the host's memory: true, false.", "BOOL")] = "false"
    db: Db = DEFAULT_PATH
    as_json: AsJson = False


@command_with(PredictOptions)
def predict(options: PredictOptions) -> None:
    """Predicts time, memory, energy and cost of runs on this machine or another, each with a 90 % interval."""
    question = _with_layouts(make_question(options), options)
    predictions, refused = predict_all(question)
    if not predictions:
        name, reason = next(iter(refused.items()))
        raise SpecError(f"nothing can be predicted: {name}: {reason}")
    if options.as_json:
        print_json([prediction_values(prediction) for prediction in predictions])
        return
    print_warnings(question, options.db)
    _print(question, predictions, refused)


def _with_layouts(question: Question, options: PredictOptions) -> Question:
    """The question with the layouts asked for, which then say how many workers there are."""
    if options.recompute not in get_args(Recompute):
        raise SpecError(
            f"--recompute {options.recompute!r} is unknown; {nearest(options.recompute, get_args(Recompute))}"
        )
    layouts: dict[str, Layout] = {}
    for text in options.layout or []:
        try:
            every = [*map(all_layouts, question.workers)] if text == ALL_LAYOUTS else [(Layout.from_text(text),)]
        except ValueError as error:
            raise SpecError(str(error)) from None
        layouts |= {layout.text: layout for some in every for layout in some}
    counts = tuple(sorted({layout.workers for layout in layouts.values()})) or question.workers
    return replace(
        question, layouts=tuple(layouts.values()), workers=counts, accumulation=options.accumulation,
        offload=_yes_or_no(options.offload),
        recompute=options.recompute,  # type: ignore[arg-type]  # checked above
    )  # fmt: skip


def _yes_or_no(text: str) -> bool:
    if text not in ("true", "false"):
        raise SpecError(f"--offload {text!r} is neither true nor false; write one of them")
    return text == "true"


def predict_all(question: Question) -> tuple[list[Prediction], dict[str, str]]:
    """Predictions of all runs that can be made, and the reasons why others cannot."""
    predictions, refused = [], {}
    for name in question.names():
        for spec in question.specs(name):
            reason = question.why_not(spec)
            if reason is not None:
                refused[spec.spread_over] = reason
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
        "knobs": {name: value for name, value in spec.settings.items() if name != "layout"},
        "layout": spec.layout.text if spec.layout else None, "link": spec.link.text if spec.link else None,
        "parts": vars(prediction.parts),
        "step_seconds": ends(prediction.step_seconds),
        "samples_per_second": ends(prediction.samples_per_second), "epoch_seconds": ends(prediction.epoch_seconds),
        "precision": spec.precision, "utilisation": prediction.utilisation,
        "tokens_per_second_per_device": ends(prediction.tokens_per_second),
        "speedup": prediction.speedup, "efficiency": prediction.efficiency,
        "memory_bytes": ends(prediction.memory_bytes), "memory_limit_bytes": prediction.memory_limit_bytes,
        "memory_method": prediction.memory.method, "memory_reason": prediction.memory.reason,
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
    _print_tables(console, predictions, _step_columns(predictions))
    console.print()
    _print_tables(console, predictions, _epoch_columns(predictions))
    if question.assumption is not None:
        console.print(f"[dim]{escape(question.assumption)}[/]")
    console.print(f"[dim]computation from {escape(predictions[0].source)}; {escape(hardware.about)}[/]")
    console.print(f"[dim]{escape(_memory_text(predictions))}[/]")
    if not all(prediction.fits for prediction in predictions):
        console.print(f"[red]no[/]: a worker has {format_bytes(predictions[0].memory_limit_bytes)}")
    for name, reason in refused.items():
        console.print(f"[yellow]left out[/] {escape(name)}: {escape(reason)}")


def _memory_text(predictions: Sequence[Prediction]) -> str:
    """Whether peaks of memory are those of a traced step or counted, and why a step could not be traced."""
    reasons = {prediction.memory.reason: None for prediction in predictions if prediction.memory.reason}
    methods = {MEMORY_METHODS.get(method, method): None for method in (each.memory.method for each in predictions)}
    return f"peak memory {' or '.join(methods)}" + "".join(f"; not traced: {reason}" for reason in reasons)


# A heading and what is below it for each prediction.
Column = tuple[str, Callable[[Prediction], str]]


def _step_columns(predictions: Sequence[Prediction]) -> list[Column]:
    """Steps and their parts."""
    parts = [name for name in PARTS if any(_share(prediction, name) >= LEAST_SHARE for prediction in predictions)]
    return [
        ("step", lambda prediction: format_seconds(prediction.parts.step)),
        ("samples/s", lambda prediction: format_about(prediction.samples_per_second.value)),
        ("90 %", lambda prediction: _ends(prediction.samples_per_second, format_about)),
        ("effi-\nciency", lambda each: "–" if each.efficiency is None else format_percent(each.efficiency)),
        *((PARTS[part], partial(_share_text, part)) for part in parts),
    ]


def _share_text(part: str, prediction: Prediction) -> str:
    return format_percent(_share(prediction, part))


def _has_tokens(predictions: Sequence[Prediction]) -> bool:
    """Whether tokens and utilisation are worth a column: models of tokens, on GPUs."""
    return any(each.tokens_per_sample is not None and each.spec.device != "cpu" for each in predictions)


def _tokens_text(prediction: Prediction) -> str:
    tokens = prediction.tokens_per_second
    return format_about(tokens.value) if tokens else "–"


def _cost_text(prediction: Prediction) -> str:
    return format_money(prediction.cost_per_epoch.value) if prediction.cost_per_epoch else "–"


def _epoch_columns(predictions: Sequence[Prediction]) -> list[Column]:
    """The time, memory, energy and cost of an epoch."""
    tokens: list[Column] = [
        (TOKENS, _tokens_text),
        ("MFU", lambda prediction: format_percent(prediction.utilisation)),
    ]
    money: list[Column] = [("cost per\nepoch", _cost_text)]
    return [
        *(tokens if _has_tokens(predictions) else []),
        ("epoch", lambda prediction: format_days(prediction.epoch_seconds.value)),
        ("90 %", lambda prediction: _ends(prediction.epoch_seconds, format_days)),
        ("memory", lambda prediction: format_bytes(prediction.memory_bytes.value)),
        ("fits", lambda prediction: "yes" if prediction.fits else "[red]no[/]"),
        ("J per\nepoch", lambda prediction: format_about(prediction.joules_per_epoch.value)),
        *(money if any(prediction.cost_per_epoch for prediction in predictions) else []),
    ]


def _print_tables(console: Console, predictions: Sequence[Prediction], columns: Sequence[Column]) -> None:
    """One table, or several below each other where the terminal is too narrow for all columns."""
    # Where words are longer than strategies' names usually are, as those of layouts, the column does not break them.
    first = max([LEAST_WIDTH, *(len(word) for prediction in predictions for word in _words(prediction))])
    cells = [(heading, [text(prediction) for prediction in predictions]) for heading, text in columns]
    names = [escape(" ".join(_words(prediction))) for prediction in predictions]
    # The column of names can be as narrow as its longest word; workers, batch and link stand beside it.
    columns_beside = _beside_names(predictions)
    beside = first + 1 + sum(_width(*column) for column in columns_beside)
    free_width, tables = 0, list[list[tuple[str, list[str]]]]()
    for heading, texts in cells:
        width = _width(heading, texts)
        if not tables or width > free_width:
            tables, free_width = [*tables, []], console.width - beside
        tables[-1].append((heading, texts))
        free_width -= width
    for number, table in enumerate(tables):
        if number:
            console.print()
        console.print(_table(first, names, [*columns_beside, *table]))


def _width(heading: str, texts: Sequence[str]) -> int:
    """The width of a column with the space behind it."""
    return 1 + max(map(len, [*heading.split("\n"), *(Text.from_markup(text).plain for text in texts)]))


def _table(first: int, names: Sequence[str], columns: Sequence[tuple[str, list[str]]]) -> Table:
    table = plain_table("strategy", *(heading for heading, _ in columns), least_width=first)
    for number, name in enumerate(names):
        table.add_row(name, *(texts[number] for _, texts in columns))
    return table


def _beside_names(predictions: Sequence[Prediction]) -> list[tuple[str, list[str]]]:
    """Columns of what tells predictions of one strategy apart; the link where there is one."""
    specs = [prediction.spec for prediction in predictions]
    columns = [
        (WORKERS, [str(spec.workers) for spec in specs]),
        (BATCH, [f"{spec.samples_per_step:,}" for spec in specs]),
    ]
    if any(spec.link for spec in specs):
        columns.append((LINK, [spec.link.text if spec.link else "–" for spec in specs]))
    return columns


def _words(prediction: Prediction) -> list[str]:
    """The strategy and the dimensions of its layout, between which a narrow column can break."""
    layout = prediction.spec.layout
    return [prediction.spec.strategy, *(layout.text.split(",") if layout else [])]


def _ends(estimate: Estimate, form: Callable[[float], str]) -> str:
    return f"{form(estimate.low)} – {form(estimate.high)}"


def _share(prediction: Prediction, part: str) -> float:
    return float(getattr(prediction.parts, part)) / prediction.parts.step
