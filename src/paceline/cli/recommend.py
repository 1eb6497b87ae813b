"""`paceline recommend`: which strategy, how many workers, what batch, and why."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from paceline.analysis.batches.critical import CriticalBatch, critical_batch_of
from paceline.analysis.rows import summarise
from paceline.cli.options import ProgressForm, QuestionOptions, command_with, make_option
from paceline.cli.predict import prediction_values
from paceline.cli.progress import progress_listener
from paceline.cli.question import make_question, print_warnings
from paceline.cli.shell.completion import objective_names
from paceline.cli.terminal import AsJson, Db, errors, flag, output, plain_table, print_json
from paceline.errors import SpecError
from paceline.plan import DEFAULT_EPOCHS, sample_count
from paceline.predict.question import Question
from paceline.recommend.answer import Answer, Candidate
from paceline.recommend.answer import recommend as answer_to
from paceline.recommend.checkpoints import Failures, SavingAdvice, advise_saving
from paceline.recommend.configs import configs, write_config
from paceline.recommend.learning_rate import learning_rate_advice, with_its_learning_rate
from paceline.recommend.objectives import OBJECTIVES
from paceline.recommend.objectives import objective as known_objective
from paceline.recommend.reasons import explain
from paceline.recommend.scripts import emit as write_script
from paceline.recommend.scripts import scripts
from paceline.recommend.trials import QUICK, THOROUGH, check_measurable, measure_noise, try_best
from paceline.recommend.unexpected import explain_unexpected, was_unexpected
from paceline.record import Record
from paceline.runs.probe import probe
from paceline.spec import RunSpec
from paceline.store import DEFAULT_PATH, Store
from paceline.strategies import strategy
from paceline.units import format_bytes, format_count, format_percent, parse_bytes, parse_seconds
from paceline.user_input.paths import is_file

SHOWN = 10
SCRIPT = "script"
# Stands for a strategy's name in a reason that several have.
THE_STRATEGY = "{strategy}"
# Numbers as long as `100,000` are shown in thousands.
LONG = 7
# The column of strategies may get as narrow as this before others are cut; longer words are folded.
LEAST_WIDTH = 14


@dataclass(frozen=True, kw_only=True)
class RecommendOptions(QuestionOptions):
    """What is asked, what is best, and how the answer is shown."""

    workers: Annotated[str, make_option("Worker counts to choose from.", "N,...")] = "1..8"
    objective: Annotated[
        str, make_option(f"What is best: {', '.join(OBJECTIVES)}.", "NAME", complete=objective_names)
    ] = "throughput"
    critical_batch: Annotated[
        float | None, make_option("For time-to-accuracy: the batch beyond which more samples are needed.", "N")
    ] = None
    failures_per_day: Annotated[
        float | None, make_option("Say how often to save, for so many failures of the training a day.", "X")
    ] = None
    device_mtbf: Annotated[
        str | None, make_option("The same, for a mean time between failures of each device, such as 50000h.", "TIME")
    ] = None
    disk: Annotated[
        str | None, make_option("For that: what a machine's disk writes in a second, such as 2GB.", "BYTES")
    ] = None
    measure: Annotated[int | None, make_option("Run the best K here and rank again.", "K")] = None
    quick: Annotated[bool, flag("--quick", "For --measure: one short run of each, for a first look.")] = False
    fresh: Annotated[bool, flag("--fresh", "For --measure: make runs again that it has stored.")] = False
    progress: ProgressForm = "bar"
    db: Db = DEFAULT_PATH
    as_json: AsJson = False
    emit: Annotated[
        str | None,
        make_option("Print the best as script, torchtitan, accelerate or deepspeed; the answer to stderr.", "KIND"),
    ] = None


@command_with(RecommendOptions)
def recommend(options: RecommendOptions) -> None:
    """Recommends a strategy, worker count and batch for a model and an objective, with reasons and what it left out."""
    known_objective(options.objective)  # a wrong name is refused before anything is said
    failures = Failures.of(
        options.failures_per_day,
        parse_seconds(options.device_mtbf) if options.device_mtbf is not None else None,
        parse_bytes(options.disk) if options.disk is not None else None,
    )
    question = make_question(options)
    _check(options, question)
    print_warnings(question, options.db)
    records = _stored_records(options.db)
    answer = answer_to(question, options.objective, records, _critical_batch(options, question, records))
    if options.measure is not None:
        answer = _measured(answer, options)
    advice = advise_saving(answer, failures, records) if failures is not None else None
    if options.as_json:
        print_json({**_values(answer), **({"saving": _saving_values(advice)} if advice is not None else {})})
        return
    _print(answer, errors() if options.emit else output(), advice)
    if options.emit:
        typer.echo(_script(answer) if options.emit == SCRIPT else _config(answer, options.emit), nl=False)


def _critical_batch(
    options: RecommendOptions, question: Question, records: Sequence[Record]
) -> CriticalBatch | float | None:
    """What the user says, else what stored runs tell, where the objective asks for it."""
    if options.critical_batch is not None or options.objective != "time-to-accuracy":
        return options.critical_batch
    return critical_batch_of(question.base, summarise(records))


def _measured(answer: Answer, options: RecommendOptions) -> Answer:
    """The answer after the best of it were run; what is predicted is said before that begins."""
    assert options.measure is not None
    check_measurable(answer)
    if not options.as_json:
        _print(answer, errors() if options.emit else output(), None)
    listener = progress_listener(options.progress)
    if options.progress == "bar":
        errors().print(f"\n[bold]running the best {options.measure} here[/] (Ctrl-C keeps what is done)")
    with Store.open(options.db) as store, listener as progress:
        if answer.objective.name == "time-to-accuracy" and answer.critical_batch is None:
            critical = measure_noise(answer, store, progress)
            answer = answer_to(answer.question, answer.objective.name, store.records(), critical)
        return try_best(answer, options.measure, store, progress, QUICK if options.quick else THOROUGH, options.fresh)


def _check(options: RecommendOptions, question: Question) -> None:
    emit, measure, said = options.emit, options.measure, options.critical_batch
    if said is not None and not 0 < said < float("inf"):
        raise SpecError(f"--critical-batch {said:g} is no number of samples; give one such as 200")
    if said is not None and options.objective != "time-to-accuracy":
        raise SpecError(
            f"--critical-batch {said:g} is for time to accuracy, and the objective is {options.objective}; "
            f"leave it out, or use --objective time-to-accuracy"
        )
    if len(question.links) > 1:
        raise SpecError(f"--link {options.link} names several links, and an answer is for one; ask for each by itself")
    if emit is not None and (emit not in (SCRIPT, *configs()) or options.as_json):
        kinds = ", ".join((SCRIPT, *configs()))
        raise SpecError(f"--emit {emit} cannot be done; write one of {kinds}, without --json")
    if measure is not None and (measure < 1 or question.hardware.kind != "cpu"):
        raise SpecError(f"--measure {measure} runs here, on cores; give a number of at least 1 and no other --system")
    for name in ("quick", "fresh"):
        if measure is None and getattr(options, name):
            raise SpecError(f"--{name} is about runs that are measured; add --measure K, or leave it out")


def _config(answer: Answer, kind: str) -> str:
    """The best candidate that such a configuration can express; if there is none, why the pick is none of them.

    Trainers that recompute whole blocks alone get the best of those.
    """
    refused: SpecError | None = None
    whole_blocks: list[Candidate] = []
    if answer.pick is not None and answer.pick.spec.recompute == "selective":
        whole_blocks += answer_to(answer.question.but_with(recompute="full"), answer.objective.name).ranked
    for candidate in (*answer.ranked, *whole_blocks):
        nodes = max(1, -(-candidate.spec.workers // answer.question.hardware.node_devices))
        try:
            text = write_config(kind, candidate.spec, nodes, _why(answer, candidate))
        except SpecError as error:
            refused = refused or error
            continue
        if refused is not None:
            errors().print(f"[yellow]{escape(str(refused))}; this is the best that it can[/]")
        return text
    raise refused or SpecError("there is nothing to write a configuration of; see the reasons above")


def _why(answer: Answer, chosen: Candidate) -> str:
    expected = f"{answer.objective.text(chosen.value.value)} {'measured' if chosen.measured else 'predicted'}"
    return f"Best for {answer.objective.name} on {answer.question.hardware.name}: {expected}."


def _script(answer: Answer) -> str:
    """The training script for the best candidate that has one; its docstring says why it was chosen."""
    chosen = next((candidate for candidate in answer.ranked if candidate.spec.strategy in scripts()), None)
    if chosen is None:
        raise SpecError(f"there is no script for any of these; there are scripts for {', '.join(sorted(scripts()))}")
    if answer.pick is not None and chosen.spec.strategy != answer.pick.spec.strategy:
        errors().print(
            f"[yellow]there is no script for {answer.pick.spec.strategy}; this is the best that has one: "
            f"{chosen.spec.strategy} on {format_count(chosen.spec.workers, 'worker')}[/]"
        )
    spec = _in_an_offered_precision(chosen.spec.model_copy(update={"steps": None, "epochs": DEFAULT_EPOCHS}))
    why = _why(answer, chosen)
    if answer.objective.name == "time-to-accuracy":
        steps = max(1, sample_count(spec, probe) // spec.samples_per_step)
        rule = learning_rate_advice(spec, answer.question, answer.critical_batch)
        spec = with_its_learning_rate(spec, answer.question, answer.critical_batch, steps, DEFAULT_EPOCHS)
        why += f" {rule}" if rule is not None else ""
    return write_script(spec, why=why)


def _in_an_offered_precision(spec: RunSpec) -> RunSpec:
    """The same run in the nearest precision that its strategy can train in, where that is another one."""
    offered = strategy(spec.strategy).needs.precisions
    if spec.precision in offered:
        return spec
    errors().print(f"[yellow]{spec.strategy} does not train in {spec.precision}; the script is for {offered[-1]}[/]")
    return spec.model_copy(update={"precision": offered[-1]})


def _stored_records(db: Path) -> list[Record]:
    if not is_file(db):
        return []
    with Store.open_existing(db) as store:
        return store.records()


def _values(answer: Answer) -> dict[str, Any]:
    return {
        "objective": answer.objective.name,
        "system": answer.question.hardware.name,
        "pick": prediction_values(answer.pick.prediction) if answer.pick else None,
        "reasons": explain(answer),
        **({"critical_batch": {"samples": known.value, "low": known.low, "high": known.high, "source": known.source}}
           if (known := answer.critical_batch) is not None else {}),
        "ranked": [
            {**prediction_values(candidate.prediction), "behind": candidate.behind, "tied": candidate.tied,
             "measured": candidate.measured, "measured_values": list(candidate.measured_values),
             "unexpected": explain_unexpected(answer, candidate), "records": list(candidate.records),
             "caveat": candidate.caveat}
            for candidate in answer.ranked
        ],
        "excluded": answer.excluded,
    }  # fmt: skip


def _saving_values(advice: SavingAdvice | str) -> dict[str, Any]:
    """How often to save, for JSON, or why that is not known."""
    if isinstance(advice, str):
        return {"reason": advice}
    return {**asdict(advice), "steps": advice.steps, "interval_seconds": advice.interval_seconds, "lost": advice.lost,
            "measured": bool(advice.records)}  # fmt: skip


def _print(answer: Answer, console: Console, advice: SavingAdvice | str | None) -> None:
    question = answer.question
    console.print(
        f"\n[bold]{escape(question.base.workload)}[/] ({question.facts.parameters:,} parameters) on "
        f"[bold]{escape(question.hardware.name)}[/], {_counts(question)}, {question.base.precision}"
        f"{_link_text(question)}, for {answer.objective.name}\n"
    )
    for number, sentence in enumerate(explain(answer)):
        console.print(f"[bold]{escape(sentence)}[/]" if number == 0 else escape(sentence))
    if question.assumption is not None:
        console.print(f"[dim]{escape(question.assumption)}[/]")
    if advice is not None:
        console.print(escape(advice if isinstance(advice, str) else advice.sentence))
    if answer.ranked:
        console.print()
        console.print(_table(answer))
    for names, reason in group_left_out(answer.excluded):
        console.print(f"[yellow]left out[/] {names} {escape(reason)}")
    looked_at = f"{answer.considered:,} configurations considered and {answer.predictions} predicted"
    if answer.ranked:
        source = answer.ranked[0].prediction.source
        legend = "".join(f"; {text}" for text in _legend(answer.ranked[:SHOWN]))
        looked_at += f", computation from {source}; intervals are 90 %{legend}"
    console.print(f"[dim]{escape(looked_at)}[/]")


def _link_text(question: Question) -> str:
    (link,) = question.links
    return f", over {link.text}" if link is not None else ""


def group_left_out(excluded: dict[str, str]) -> list[tuple[str, str]]:
    """Strategies that were left out, with the reason; those with the same reason but for their names together."""
    groups: dict[str, list[str]] = {}
    for name, reason in excluded.items():
        groups.setdefault(reason.replace(f"{name} ", f"{THE_STRATEGY} "), []).append(name)
    return [
        (", ".join(names), reason.replace(f"{THE_STRATEGY} ", f"{names[0]} " if len(names) == 1 else "each "))
        for reason, names in groups.items()
    ]


def _legend(shown: Sequence[Candidate]) -> Iterator[str]:
    """What the marks in the table mean, as far as it has them."""
    if any(candidate.tied for candidate in shown):
        yield "= ties with the best"
    if any(not candidate.tied for candidate in shown):
        yield "behind: how much more it takes than the best"
    if any(candidate.measured is not None for candidate in shown):
        yield "* measured"
    if any(map(was_unexpected, shown)):
        yield "! far from what was predicted"
    if any(candidate.caveat for candidate in shown):
        yield "† not synchronised in every step, or with an optimizer of its own: its steps do not compare"


def _counts(question: Question) -> str:
    low, high = min(question.workers), max(question.workers)
    return format_count(low, "worker") if low == high else f"{low} to {format_count(high, 'worker')}"


def _table(answer: Answer) -> Table:
    tokens = answer.question.tokens_per_sample is not None and answer.question.hardware.kind == "cuda"
    busy = "MFU" if tokens else "effi-\nciency"
    value = answer.objective.metric.label.replace(" per ", "\nper ")
    # The objective's own column may be that of memory already.
    memory = [] if answer.objective.name == "memory" else ["memory"]
    table = plain_table(
        "strategy", "wor-\nkers", "batch", value, "90 %", "behind", busy, *memory, least_width=LEAST_WIDTH
    )
    for candidate in answer.ranked[:SHOWN]:
        spec, goal = candidate.spec, answer.objective
        ends = [_bare(goal.text(value)) for value in (candidate.value.low, candidate.value.high)]
        share = candidate.prediction.utilisation if tokens else candidate.prediction.efficiency
        behind = "=" if candidate.tied else format_percent(candidate.behind)
        table.add_row(
            escape(_name(candidate)), str(spec.workers),
            f"{spec.samples_per_step:,}",
            _bare(goal.text(candidate.best_known)) + _mark(candidate),
            " – ".join(ends), behind,
            "–" if share is None else format_percent(share),
            *([format_bytes(candidate.prediction.memory_bytes.value)] if memory else []),
        )  # fmt: skip
    return table


def _mark(candidate: Candidate) -> str:
    if candidate.measured is None:
        return ""
    return "*!" if was_unexpected(candidate) else "*"


def _name(candidate: Candidate) -> str:
    """The strategy and its settings; dimensions of a layout are words, between which a narrow column can break."""
    settings = dict(candidate.spec.settings)
    layout = str(settings.pop("layout", "")).split(",")
    execution = [] if candidate.spec.execution == "eager" else [candidate.spec.execution]
    words = [candidate.spec.strategy, *layout, *(f"{name}={value}" for name, value in settings.items()), *execution]
    return " ".join([*filter(None, words), *(["†"] if candidate.caveat else [])])


def _bare(text: str) -> str:
    """The number without its unit, which the heading has, and in thousands where it is long."""
    bare = (
        text.removesuffix(" samples/s")
        .removesuffix(" of progress")
        .removesuffix(" per epoch")
        .removesuffix(" per worker")
    )
    digits = bare.replace(",", "")
    return f"{round(int(digits) / 1000):,}k" if digits.isdigit() and len(bare) >= LONG else bare
