"""`paceline run`: plan, run, store, show."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from paceline.analysis.rows import summarise
from paceline.catalogue import choose
from paceline.cli.event_lines import EventLines
from paceline.cli.fields import fields_from, parse_pairs
from paceline.cli.progress import Progress, print_estimate, print_plan, run_name
from paceline.cli.show import print_results
from paceline.cli.terminal import Db, errors, output
from paceline.errors import UserError
from paceline.estimate import measured
from paceline.execute import Outcome, execute, plan_study
from paceline.plan import with_defaults
from paceline.runs.meters.energy import WATTS_VARIABLE, watts_per_core
from paceline.scale import FULL, shrink
from paceline.spec import ModelFile
from paceline.store import DEFAULT_PATH, Store
from paceline.study import Study, built_in_studies

EXIT_SOME_FAILED = 1


def _option(help_text: str, metavar: str, *names: str, panel: str = "What to run") -> Any:
    return typer.Option(*names, help=help_text, metavar=metavar, rich_help_panel=panel)


def run(  # noqa: PLR0913, PLR0917 - one parameter per option of the command
    study: Annotated[
        str | None, typer.Argument(help="A built-in study (see --list) or a TOML file.", show_default=False)
    ] = None,
    workload: Annotated[str | None, _option("Built-in model(s).", "NAME,...")] = None,
    model: Annotated[str | None, _option("Your own model: a function in a file.", "FILE:FUNCTION")] = None,
    option: Annotated[list[str] | None, _option("Option of the workload, such as depth=8.", "NAME=VALUE")] = None,
    dataset: Annotated[str | None, _option("Data set(s).", "NAME,...")] = None,
    dataset_copies: Annotated[str | None, _option("The data set this many times over.", "N,...")] = None,
    train_samples: Annotated[str | None, _option("Only the first training samples.", "N,...")] = None,
    input_shape: Annotated[str | None, _option("Shape of synthetic samples, channels first.", "CxHxW")] = None,
    classes: Annotated[int | None, _option("Classes of synthetic samples.", "N")] = None,
    strategy: Annotated[str | None, _option("Strategies, patterns allowed ('torch-*').", "NAME,...")] = None,
    knob: Annotated[
        list[str] | None, _option("Setting of a strategy, such as bucket_mb=1,25.", "NAME=VALUE,...")
    ] = None,
    workers: Annotated[str | None, _option("Worker counts, such as 1,2 or 1..4.", "N,...")] = None,
    global_batch: Annotated[str | None, _option("Samples per step over all workers: strong scaling.", "N,...")] = None,
    local_batch: Annotated[str | None, _option("Samples per step and worker: weak scaling.", "N,...")] = None,
    epochs: Annotated[int | None, _option("Passes over the data.", "N")] = None,
    steps: Annotated[int | None, _option("Optimizer steps, instead of epochs.", "N")] = None,
    repeats: Annotated[int | None, _option("Runs of each configuration.", "N")] = None,
    seed: Annotated[str | None, _option("Seed(s) of weights and order.", "N,...")] = None,
    optimizer: Annotated[list[str] | None, _option("Such as name=sgd or lr=0.01.", "NAME=VALUE", panel="How")] = None,
    precision: Annotated[str | None, _option("fp32, tf32, bf16.", "NAME,...", panel="How")] = None,
    execution: Annotated[
        str | None, _option("eager, compiled, graph, compiled+graph.", "NAME,...", panel="How")
    ] = None,
    memory_format: Annotated[str | None, _option("channels_last, contiguous.", "NAME,...", panel="How")] = None,
    device: Annotated[str | None, _option("cpu, cuda, cuda-slice.", "NAME,...", panel="How")] = None,
    slices: Annotated[int | None, _option("Cut the GPU into so many (cuda-slice).", "N", panel="How")] = None,
    cores_per_worker: Annotated[str | None, _option("CPU cores of each worker.", "N,...", panel="How")] = None,
    allocator: Annotated[str | None, _option("tuned, default.", "NAME,...", panel="How")] = None,
    timeout: Annotated[str | None, _option("Time limit of one run, such as 90s or 10m.", "TIME", panel="How")] = None,
    data_dir: Annotated[Path | None, _option("Folder with the MNIST files.", "DIR", panel="How")] = None,
    watts: Annotated[
        float | None,
        _option("Of a busy core, where energy can only be estimated.", "W", "--watts-per-core", panel="How"),
    ] = None,
    db: Db = DEFAULT_PATH,
    scale: Annotated[
        str | None, typer.Option("--scale", help="The study made smaller: tiny, small or full.", metavar="NAME")
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Print the plan and how long it will take, from a few measured steps; store nothing."
        ),
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Repeat runs that are already stored.")] = False,
    retry: Annotated[bool, typer.Option("--retry", help="Repeat stored runs that did not end well.")] = False,
    breakdown: Annotated[
        bool, typer.Option("--breakdown", help="Also find out where the time goes, in short runs apart.")
    ] = False,
    progress: Annotated[
        str, typer.Option("--progress", help="bar, or json: one object per line on standard error.", metavar="FORM")
    ] = "bar",
    list_studies: Annotated[bool, typer.Option("--list", help="List the built-in studies.")] = False,
) -> None:
    """Runs a study, or the runs that the options describe; a study that was stopped goes on where it was."""
    if list_studies:
        _list_studies()
        return
    if data_dir is not None:
        os.environ["PACELINE_DATA"] = str(data_dir.resolve())
    if watts is not None:
        os.environ[WATTS_VARIABLE] = str(watts)
    watts_per_core()  # what is no power is refused before anything runs
    fields = fields_from(
        names={"workload": workload, "dataset": dataset, "strategy": strategy, "precision": precision,
               "execution": execution, "memory_format": memory_format, "device": device, "allocator": allocator},
        numbers={"dataset_copies": dataset_copies, "train_samples": train_samples, "workers": workers, "seed": seed,
                 "global_batch": global_batch, "local_batch": local_batch, "cores_per_worker": cores_per_worker},
        plain={"epochs": epochs, "steps": steps, "classes": classes, "slices": slices},
        input_shape=input_shape, timeout=timeout,
    )  # fmt: skip
    if model is not None:
        fields["model"] = ModelFile.from_text(model)
    tables = {"knobs": parse_pairs(knob, "--knob"), "options": parse_pairs(option, "--option"),
              "optimizer": parse_pairs(optimizer, "--optimizer")}  # fmt: skip
    asked = described_study(study, fields, tables, repeats, scale)
    if dry_run:
        _print_what_is_left(asked, db, fresh=fresh, retry=retry, breakdown=breakdown)
        return
    outcome = _run_and_store(asked, db, _chosen_progress(progress), fresh=fresh, retry=retry, breakdown=breakdown)
    if outcome.interrupted:
        raise KeyboardInterrupt
    if outcome.failures:
        raise typer.Exit(EXIT_SOME_FAILED)


def described_study(
    name: str | None, fields: dict[str, Any], tables: dict[str, dict[str, Any]], repeats: int | None,
    scale: str | None = None,
) -> Study:  # fmt: skip
    """The named study with the options in place of its fields, or a study made of the options alone."""
    if name is None and not fields:
        raise UserError(
            "nothing to run was named; give a study (paceline run quick), or options such as --strategy torch-ddp"
        )
    asked = Study.load(name) if name is not None else Study(name="command-line", fixed=with_defaults(fields))
    asked = asked.with_fields(fields).with_tables(tables)
    if scale is not None:
        asked = shrink(asked, scale, kept=fields)
    return asked if repeats is None else Study.parse({**asked.model_dump(), "repeats": repeats}, "--repeats")


def _print_what_is_left(asked: Study, db: Path, **wishes: bool) -> None:
    if db.is_file():
        with Store.open_existing(db) as store:
            plan, stored = plan_study(asked, store, **wishes), store.records()
    else:
        plan, stored = plan_study(asked, None, breakdown=wishes["breakdown"]), []
    print_plan(plan)
    if plan.to_run:
        with errors().status("measuring a few steps") as status:
            told = measured(plan, stored, lambda spec: status.update(f"measuring a few steps of {run_name(spec)}"))
        print_estimate(told)


def _chosen_progress(form: str) -> Progress | EventLines:
    forms: dict[str, type[Progress | EventLines]] = {"bar": Progress, "json": EventLines}
    return choose(form, forms, "form of progress")()


def _run_and_store(asked: Study, db: Path, shown: Progress | EventLines, **wishes: bool) -> Outcome:
    plan_study(asked, None)  # wrong input is refused before anything is written
    with Store.open(db) as store:
        with errors().status("looking at what there is to do"):
            plan = plan_study(asked, store, **wishes)
        with shown as listener:
            outcome = execute(plan, store, listener)
        if not outcome.interrupted:
            keys = set(plan.keys)
            records = [record for record in store.records() if record.key in keys]
            print_results(records, summarise(records), breakdown=wishes["breakdown"])
    return outcome


def _list_studies() -> None:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("study", "--scale", "what it asks"):
        table.add_column(title, no_wrap=title == "study")
    for name in built_in_studies():
        study = Study.load(name)
        table.add_row(f"[bold]{name}[/]", "\n".join([*study.scales, FULL]), study.about)
    output().print(table)
    errors().print("[dim]paceline run NAME, or paceline run FILE.toml[/]")
