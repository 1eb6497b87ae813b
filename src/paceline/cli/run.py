"""`paceline run`: plan, run, store, show."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import typer
from rich.markup import escape
from rich.table import Table

from paceline.cli.options import command_with
from paceline.cli.progress import plan_values, print_estimate, print_plan, progress_listener, run_name
from paceline.cli.run_options import RunOptions, TrainingOptions
from paceline.cli.show import print_results
from paceline.cli.tables.summaries import summarise_stored
from paceline.cli.terminal import errors, output, print_json
from paceline.errors import UserError
from paceline.estimate import estimate as estimate_plan
from paceline.estimate import estimate_by_measuring
from paceline.execute import Outcome, execute, plan_study
from paceline.fleet import LOCAL, Fleet, parse_fleet
from paceline.plan import Plan
from paceline.record import FINAL, Record
from paceline.runs.fleets import Machines, open_machines
from paceline.runs.meters.room import free_bytes, leave_out_what_cannot_fit
from paceline.runs.probe import probe
from paceline.scale import FULL
from paceline.store import Store, refuse_memory
from paceline.study import Study, built_in_studies
from paceline.systems import local_system
from paceline.units import format_count
from paceline.user_input.paths import is_file

EXIT_SOME_FAILED = 1


@command_with(RunOptions)
def run(options: RunOptions) -> None:
    """Runs a study, or the runs that the options describe; a study that was stopped goes on where it was."""
    if options.list_studies:
        _print_studies()
        return
    if options.as_json and not options.dry_run:
        raise UserError("--json prints a plan, and there is no --dry-run; for results as JSON, paceline show --json")
    refuse_memory(options.db)
    options.set_environment()
    study, fleet = options.described_study(), parse_fleet(options.on)
    with reached(fleet) as machines:
        if options.dry_run:
            _print_plan_and_estimate(study, options, machines)
            return
        outcome = run_and_show(study, options, machines)
    exit_unless_all_well(outcome)


def run_and_show(study: Study, options: TrainingOptions, machines: Machines) -> Outcome:
    """Makes the runs that are not stored yet, stores each, and prints the results."""
    progress = progress_listener(options.progress)
    plan_study(study, None, machines=machines)  # wrong input is refused before anything is written
    with Store.open(options.db) as store:
        with errors().status("looking at what there is to do"):
            plan = _plan(study, store, options, machines)
        with progress as listener:
            outcome = execute(plan, store, listener, machines)
        if not outcome.interrupted:
            _show(plan, study.repeats, store, options, outcome)
    return outcome


def _failed(record: Record) -> bool:
    return record.status in FINAL and not record.ok


@contextmanager
def reached(fleet: Fleet) -> Iterator[Machines]:
    """The machines of a fleet, with a word on what takes a while."""
    with ExitStack() as stack:
        if fleet != LOCAL:
            with errors().status(f"reaching {fleet.about}"):
                machines = stack.enter_context(open_machines(fleet))
        else:
            machines = stack.enter_context(open_machines(fleet))
        yield machines


def _plan(study: Study, store: Store | None, options: TrainingOptions, machines: Machines) -> Plan:
    fresh, retry, breakdown = options.fresh, options.retry, options.breakdown
    plan = plan_study(study, store, fresh=fresh, retry=retry, breakdown=breakdown, machines=machines)
    return plan if options.force else leave_out_what_cannot_fit(plan, probe, free_bytes(), local_system().gpus)


def _show(plan: Plan, repeats: int, store: Store, options: TrainingOptions, outcome: Outcome) -> None:
    failures = goods = 0

    def counted() -> Iterator[list[Record]]:
        nonlocal failures, goods
        for records in store.configurations(keys=plan.keys):
            failures += sum(record.repeat < repeats and _failed(record) for record in records)
            goods += sum(record.ok for record in records)
            yield records

    summary, findings = summarise_stored(counted())
    outcome.stored_failures = failures - outcome.failures
    outcome.has_results = not plan.keys or goods > 0
    rows = summary.rows()
    wanted = {
        "breakdown": options.breakdown, "checkpoints": any(row.checkpoint.checkpoint_bytes for row in rows),
        "membership": any(row.membership for row in rows),
    }  # fmt: skip
    print_results(rows, findings.gather(rows), [name for name, is_wanted in wanted.items() if is_wanted])


def exit_unless_all_well(outcome: Outcome) -> None:
    """The exit code says whether runs failed, now or when they were stored, and whether there is any result."""
    if outcome.interrupted:
        raise KeyboardInterrupt
    if outcome.stored_failures > 0:
        errors().print(
            f"{format_count(outcome.stored_failures, 'stored run')} did not end well; --retry repeats "
            f"{'it' if outcome.stored_failures == 1 else 'them'}"
        )
    if not outcome.has_results:
        errors().print(f"no run of {escape(outcome.plan.study)} gave a result; the reasons are above")
    if outcome.failures:
        errors().print("[dim]what failed runs printed: paceline show --logs[/]")
    if outcome.failures or outcome.stored_failures > 0 or not outcome.has_results:
        raise typer.Exit(EXIT_SOME_FAILED)


def _print_plan_and_estimate(study: Study, options: RunOptions, machines: Machines) -> None:
    if is_file(options.db):
        with Store.open_existing(options.db) as store:
            plan, stored = _plan(study, store, options, machines), store.records()
    else:
        plan, stored = _plan(study, None, options, machines), []
    scripted = any(run.spec.script is not None for run in plan.to_run)
    if options.as_json:
        seconds = None if scripted else estimate_plan(plan, stored, lambda _: None).seconds
        print_json(plan_values(plan, seconds))
        return
    print_plan(plan)
    if scripted:
        output().print("how long a script trains is not known before it is run")
    elif plan.to_run:
        with errors().status("measuring a few steps") as status:
            estimate = estimate_by_measuring(
                plan, stored, lambda spec: status.update(f"measuring a few steps of {run_name(spec)}"), machines
            )
        print_estimate(estimate)


def _print_studies() -> None:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("study", "--scale", "what it asks"):
        table.add_column(title, no_wrap=title == "study")
    for name in built_in_studies():
        study = Study.load(name)
        table.add_row(f"[bold]{name}[/]", "\n".join([*study.scales, FULL]), study.about)
    output().print(table)
    errors().print("[dim]paceline run NAME, or paceline run FILE.toml[/]")
