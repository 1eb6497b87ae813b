"""`paceline calibrate`: measures this machine and writes the system file that predictions start from."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, cast, get_args

from rich.markup import escape

from paceline.calibrate.calibration import QUICK, THOROUGH, Calibrator
from paceline.calibrate.gpu.calibrator import QUICK_SECONDS, USUAL_SECONDS, USUAL_SLICES, GpuCalibrator
from paceline.calibrate.gpu.messages import Where
from paceline.calibrate.gpu.replay import NO_REPLAY, replay_of
from paceline.calibrate.journal import Journal
from paceline.calibrate.log_numbers import FITTED
from paceline.calibrate.logs import FittedLog, fit_log, system_that_fits
from paceline.calibrate.merge import merge_systems
from paceline.cli.options import ModelOptions, On, command_with, make_option
from paceline.cli.question import model_fields
from paceline.cli.terminal import Db, errors, flag, output, plain_table
from paceline.cli.validate import parse_assumed, print_refused, print_summaries
from paceline.errors import SpecError, nearest, user_can_choose
from paceline.fleet import LOCAL, Fleet, parse_fleet
from paceline.plan import refusal
from paceline.predict.logged import read_log
from paceline.predict.measured import was_disturbed
from paceline.predict.question import Question
from paceline.record import Record
from paceline.runs.fleets import opened_fleet
from paceline.runs.launchers.remote_command import run_remotely, send_model, slowest_link
from paceline.runs.probe import probe
from paceline.spec import MOST_SLICES
from paceline.store import DEFAULT_PATH, Store
from paceline.strategies import strategies
from paceline.systems.files import LOCAL_FILE, load_hardware, to_toml
from paceline.systems.hardware import Hardware, Link, Quantity
from paceline.systems.local import local_system
from paceline.systems.software import AttentionKernel
from paceline.units import format_bytes, format_count, format_percent, format_seconds, parse_whole_numbers
from paceline.user_input.paths import is_file

# With more of its runs disturbed than this, a calibration says so.
MOST_DISTURBED = 1 / 3
# Options that are for the launcher and not for the machine that calibrates itself.
_OF_THE_LAUNCHER = frozenset({"on", "out", "db", "fresh", "model"})
# Options that change nothing of what is measured.
_NO_INPUT = frozenset({"out", "db", "fresh"})
LOG_PANEL = "Logged runs"
HEADER = (
    "# Written by paceline calibrate. Seconds, bytes, and relative deviations (residual); see docs/cost-model.md.\n\n"
)


@dataclass(frozen=True, kw_only=True)
class CalibrateOptions(ModelOptions):
    """What is measured, and where the results go."""

    frameworks: Annotated[str | None, make_option("Of torch, tensorflow, jax; those that are here.", "NAME,...")] = None
    device: Annotated[str, make_option("cpu, cuda, or cuda-slice: one GPU as several.", "NAME")] = "cpu"
    slices: Annotated[int, make_option("Of device cuda-slice: how many the GPU is cut into.", "N")] = USUAL_SLICES
    batch: Annotated[
        str | None,
        make_option("On GPUs, with a model: local batches whose operations are timed.", "N,...", "--local-batch"),
    ] = None
    seconds: Annotated[float, make_option("On GPUs: for how long at most, about.", "N")] = USUAL_SECONDS
    log: Annotated[
        Path | None,
        make_option("Fit a system to logged runs instead: a CSV or results file.", "FILE", "--from", panel=LOG_PANEL),
    ] = None
    hold_out: Annotated[
        float, make_option("Share of the runs kept out of the fit, to test it with.", "SHARE", panel=LOG_PANEL)
    ] = 0.0
    seed: Annotated[int, make_option("Which runs are kept out.", "N", panel=LOG_PANEL)] = 0
    system: Annotated[
        str | None,
        make_option("Description to start from; the slowest that can have made the runs.", "NAME", panel=LOG_PANEL),
    ] = None
    attention: Annotated[str | None, make_option("fused or unfused; what fits better.", "NAME", panel=LOG_PANEL)] = None
    assume: Annotated[
        list[str] | None,
        make_option("What rows that do not say so are taken for.", "NAME=VALUE", panel=LOG_PANEL),
    ] = None
    on: On = None
    out: Annotated[Path | None, make_option("System file to write; with --from, named after the log.", "FILE")] = None
    fresh: Annotated[
        bool, flag("--fresh", "Replace the file; else the less disturbed measurement of both is kept.")
    ] = False
    quick: Annotated[bool, flag("--quick", "In about half the time, each run once and shorter.")] = False
    db: Db = DEFAULT_PATH


@command_with(CalibrateOptions)
def calibrate(options: CalibrateOptions) -> None:
    """Measures this machine, cores or GPUs, in a minute or two, or fits logged runs, and writes a system file."""
    if options.log is not None:
        _from_log(options, options.log)
        return
    out = options.out or LOCAL_FILE
    if options.device not in get_args(Where):
        raise SpecError(f"--device {options.device!r} is unknown; {nearest(options.device, get_args(Where))}")
    fleet = parse_fleet(options.on)
    if fleet != LOCAL:
        measured, out = _on_fleet(options, fleet)
    else:
        with _journal(options, out) as journal:
            measured = _cores(options, journal) if options.device == "cpu" else _gpus(options, journal)
    if is_file(out) and not options.fresh:
        measured = merge_systems(load_hardware(str(out)), measured)
    _write(measured, out)
    _print(measured, out)


@contextmanager
def _journal(options: CalibrateOptions, out: Path) -> Iterator[Journal]:
    """What is measured is kept beside the file that is written, until that is whole."""
    here = local_system()
    chosen = {field.name: str(getattr(options, field.name)) for field in fields(options) if field.name not in _NO_INPUT}
    identity = {"machine": here.cpu, "cores": here.cores, "frameworks": here.frameworks, "options": chosen}
    partial = out.with_name(f"{out.name}.partial")
    with user_can_choose(f"what is measured cannot be kept in {partial}", "--out"):
        journal = Journal(partial, json.dumps(identity, sort_keys=True), options.fresh)
    if journal.known:
        errors().print(
            f"going on with {format_count(journal.known, 'measurement')} of a calibration that was interrupted "
            f"(--fresh begins anew)"
        )
    try:
        yield journal
    except BaseException:
        journal.leave()
        raise
    journal.close()


def _write(hardware: Hardware, out: Path) -> None:
    with user_can_choose(f"system file {out} cannot be written", "--out"):
        out.write_text(HEADER + to_toml(hardware.model_dump(mode="json", exclude_none=True)))


def _from_log(options: CalibrateOptions, path: Path) -> None:
    """Fits logged runs."""
    if not 0 <= options.hold_out < 1:
        raise SpecError(f"--hold-out {options.hold_out:g} is no share of the runs; use such as 0.5")
    if options.attention is not None and options.attention not in get_args(AttentionKernel):
        raise SpecError(f"--attention {options.attention!r} is unknown; choose from fused, unfused")
    assumed, out = parse_assumed(options.assume), options.out or Path(path.stem).with_suffix(".toml")
    log = read_log(path, assumed)
    described = load_hardware(options.system) if options.system else system_that_fits(log.runs, path.stem)
    with _progress() as say:
        fit = fit_log(
            log.runs, described, source=path.name, hold_out=options.hold_out, seed=options.seed, assumed=assumed,
            attention=cast("AttentionKernel | None", options.attention), say=say,
        )  # fmt: skip
    fit = replace(fit, refused={**log.refused, **fit.refused})
    _write(fit.hardware.model_copy(update={"name": out.stem}), out)
    _print_fit(fit, described, out)


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    with errors().status("") as status:

        def say(text: str) -> None:
            status.update(text)
            if not errors().is_terminal:
                errors().print(text)

        yield say


def _cores(options: CalibrateOptions, journal: Journal) -> Hardware:
    described_machine = load_hardware("cpu-2-cores")
    question = Question(hardware=described_machine, **model_fields(options))
    chosen = _frameworks(options.frameworks, question)
    disturbed: list[bool] = []
    with Store.open(options.db) as store, _progress() as say:

        def keep(record: Record) -> None:
            store.add(record)
            disturbed.append(was_disturbed(record))

        effort = QUICK if options.quick else THOROUGH
        calibrator = Calibrator(local_system(), question.base, question.facts, say, keep, chosen, effort, journal)
        measured = calibrator.calibrate(described_machine)
    if sum(disturbed) > len(disturbed) * MOST_DISTURBED:
        errors().print(
            f"there was other load on the machine in {sum(disturbed)} of {len(disturbed)} runs, which makes the "
            "calibration less accurate; calibrate again when the machine is idle: the less disturbed is kept"
        )
    return measured


def _on_fleet(options: CalibrateOptions, fleet: Fleet) -> tuple[Hardware, Path]:
    """The first machine as it calibrates itself, with the measured link between the machines, and where that goes."""
    with TemporaryDirectory() as folder, _progress() as say:
        say(f"reaching {fleet.about}")
        with opened_fleet(fleet) as machines:
            names = machines.fleet.names
            link = slowest_link(machines, say)
            changed = [field for field in fields(options) if getattr(options, field.name) != field.default]
            chosen = {
                field.name: getattr(options, field.name) for field in changed if field.name not in _OF_THE_LAUNCHER
            }
            if options.model is not None:
                chosen["model"] = send_model(machines, options.model)
            file = Path(folder) / "measured.toml"
            run_remotely(machines, ["calibrate", *_words(chosen), "--out", file.name, "--fresh"], file, say)
        measured = load_hardware(str(file))
    out = options.out or Path(names[0]).with_suffix(".toml")
    about = f"{format_count(len(names), 'machine')} like {names[0]}: {measured.about}"
    named = measured.model_copy(update={"name": out.stem, "about": about})
    if link is None:
        return named, out
    source = f"the slowest TCP transfer between {', '.join(names)}, measured by paceline calibrate"
    quantities = [Quantity(value=value, source=source) for value in link]
    outer = Link(bytes_per_second=quantities[0], latency_seconds=quantities[1])
    return named.model_copy(update={"outer": outer}), out


def _words(chosen: dict[str, Any]) -> list[str]:
    """Options as they are typed."""
    names = {"batch": "local-batch"}
    words = []
    for name, value in chosen.items():
        option = f"--{names.get(name, name).replace('_', '-')}"
        if value is True:
            words.append(option)
            continue
        words += [word for each in (value if isinstance(value, list) else [value]) for word in (option, str(each))]
    return words


def _gpus(options: CalibrateOptions, journal: Journal) -> Hardware:
    system, device = local_system(), options.device
    if not system.gpus:
        raise SpecError(f"--device {device}: this machine has no CUDA device; use --device cpu, or see paceline doctor")
    if device == "cuda-slice" and system.no_slices:
        raise SpecError(f"--device {device}: {system.no_slices}; use --device cuda")
    if options.slices < 1 or options.slices > MOST_SLICES:
        raise SpecError(f"--slices {options.slices} is not between 1 and {MOST_SLICES}; use such as {USUAL_SLICES}")
    if "torch" not in system.frameworks:
        raise SpecError(f"--device {device}: operations are timed in PyTorch, which is not here; pip install torch")
    replay = NO_REPLAY
    if options.workload is not None or options.model is not None:
        batches = parse_whole_numbers(options.batch, "--local-batch") if options.batch else None
        replay = replay_of(Question(hardware=load_hardware("h200-nvlink"), **model_fields(options)), batches)
    with _progress() as say:
        calibrator = GpuCalibrator(
            system, device, say, options.slices, replay, journal=journal,  # type: ignore[arg-type]  # checked
            seconds=min(options.seconds, QUICK_SECONDS) if options.quick else options.seconds,
        )  # fmt: skip
        measured = calibrator.calibrate()
    for part, reason in calibrator.failures.items():
        errors().print(f"[yellow]not measured[/] {escape(part)}: {escape(reason)}")
    return measured


def _frameworks(text: str | None, question: Question) -> list[str]:
    here = local_system().frameworks
    singles = {strategy.framework: strategy for strategy in strategies().values() if strategy.family == "single"}
    names = [word.strip() for word in text.split(",")] if text else [name for name in singles if name in here]
    frameworks = []
    for name in names:
        if name not in singles:
            raise SpecError(f"--frameworks {name!r} is unknown; choose from {', '.join(map(str, singles))}")
        spec = question.base.model_copy(update={"strategy": singles[name].name})
        trains = question.user_model_facts is None or singles[name].trains == question.user_model_facts.framework
        if trains and refusal(spec, local_system(), probe) is None:
            frameworks.append(str(name))
        elif text:
            raise SpecError(f"--frameworks {name}: it cannot train {spec.workload} here; leave it out, or see doctor")
    return sorted(frameworks, key=lambda name: name != "torch")


def _print(hardware: Hardware, out: Path) -> None:
    console, calibration = output(), hardware.calibration
    assert calibration is not None
    for curve in calibration.steps:
        points = ", ".join(
            f"{size:g}: {format_seconds(seconds)}"
            for size, seconds in zip(curve.seconds.sizes, curve.seconds.values, strict=True)
        )
        console.print(
            f"step of {escape(curve.model)} in {curve.framework} by local batch: {points} "
            f"(residual {format_percent(curve.seconds.residual)})"
        )
    for collective in calibration.collectives:
        rate = f"{format_bytes(1 / collective.curve.slope)}/s" if collective.curve.slope else "–"
        console.print(
            f"{collective.transport} {collective.kind}, {collective.ranks} workers: "
            f"{format_seconds(collective.curve.fixed)} to start, then {rate} "
            f"(residual {format_percent(collective.curve.residual)})"
        )
    timed, replayed = (
        sum(len(times.seconds) for times in grid) for grid in (calibration.operations, calibration.replayed)
    )
    if timed:
        device, of_model = hardware.device, replayed + len(calibration.replayed_calls)
        console.print(
            f"{timed:,} operations timed{f', and {of_model:,} of the model itself' if of_model else ''}; products "
            f"reach {format_percent(device.product_efficiency.value)} of the peak, passes over memory "
            f"{format_percent(device.memory_efficiency.value)} of the bandwidth"
        )
        # On cores the time of an operation has that of its host in it.
        for execution, host in device.host_seconds_per_operation.items() if hardware.kind == "cuda" else ():
            console.print(f"the host takes {format_seconds(host.value)} to launch an operation, {execution}")
    for count, factor in calibration.crowding.items():
        console.print(f"{count} workers at once compute {factor:.2f} times as long as one")
    for count, factors in calibration.operation_crowding.items() if hardware.slices else ():
        console.print(
            f"{count} slices at once take {factors.get('product', 1.0):.2f} times as long as one for products, "
            f"{factors.get('add', 1.0):.2f} times for passes over memory"
        )
    usage = "other commands in this folder use it by themselves" if out == LOCAL_FILE else f"use it with --system {out}"
    console.print(f"[dim]written to {escape(str(out))}; {escape(usage)}[/]")


def _print_fit(fit: FittedLog, described: Hardware, out: Path) -> None:
    """The numbers before and after, and how well runs are predicted that a fit had not seen."""
    console = output()
    table = plain_table("fitted", described.name, "now")
    for number in FITTED:
        table.add_row(number.name, f"{number.start(described):.3g}", f"{fit.numbers[number.name]:.3g}")
    console.print(table)
    software = fit.hardware.software
    assert software is not None
    console.print(f"attention {software.attention}" + (" (fits better)" if fit.attention_chosen else ""))
    console.print()
    print_summaries("cross-validated", fit.cross_validated)
    if fit.held_out is not None:
        console.print()
        print_summaries("held out", fit.held_out)
    print_refused(fit.refused)
    console.print(f"[dim]{escape(software.source)}[/]", soft_wrap=True)
    console.print(f"[dim]written to {escape(str(out))}; use it with --system {escape(str(out))}[/]")
