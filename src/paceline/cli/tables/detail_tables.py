"""Further tables about the same runs: breakdown, statistics, energy, memory, convergence, checkpoints, membership."""

from collections.abc import Callable, Sequence

from rich.markup import escape

from paceline.analysis.batches.regimes import BatchSearch, describe_search
from paceline.analysis.labels import series_name, varying_fields
from paceline.analysis.memory import RankMemory
from paceline.analysis.rows import Row
from paceline.analysis.statistics import median_or_none
from paceline.breakdown import PARTS, RankBreakdown
from paceline.cli.tables.long_table import LongTable
from paceline.cli.terminal import output, plain_table
from paceline.units import format_money, format_percent, format_rate, format_seconds

Value = float | None
MEGABYTE = 1e6
# Short enough for a terminal of 80 columns; the parts in the order of `PARTS`.
BREAKDOWN_HEADERS = (
    "rank", "step", "in-\nput", "for-\nward", "back-\nward", "ex-\nposed", "wait-\ning", "opti-\nmizer", "other",
    "hid-\nden",
)  # fmt: skip
# How the sources of joules are explained below the table.
_SOURCES = {
    "nvml": "nvml: the counters of the GPUs in use, {idle} W of it when idle",
    "rapl": "rapl: the processor's counters for the whole machine, {idle} W of it when idle",
    "estimated": "estimated: CPU seconds of the run x {watts} W for each busy core (run --watts-per-core); idling is "
    "in neither number",
}


def print_breakdown(rows: Sequence[Row]) -> None:
    """Prints where the time of a step goes, one line per rank, or how to find out where no run was instrumented."""
    instrumented = [row for row in rows if row.breakdown]
    if not instrumented:
        _say_unknown(rows, "where the time goes is not known here: run it with --breakdown")
        return
    table, names = _table("ms of a step", rows, BREAKDOWN_HEADERS, least_width=20)
    for row in instrumented:
        for place, rank in enumerate(row.breakdown):
            table.add_row(names[row.key] if place == 0 else "", str(rank.rank), *_breakdown_cells(rank))
    slowdown = max(row.instrumentation_overhead or 0.0 for row in instrumented)
    longer = f"up to {slowdown:.0%} longer than" if slowdown > 0 else "no longer than"
    note = (
        "exposed: transfer that a rank stands still for; waiting: for slower ranks to come to it; hidden: "
        f"transfer behind computation. From instrumented runs, whose steps were {longer} the timed ones"
    )
    _print(table, [note])


def _breakdown_cells(rank: RankBreakdown) -> list[str]:
    values = [rank.step, *(getattr(rank, part) for part in PARTS), rank.overlapped]
    return [f"{value * 1e3:.1f}" if value < 1 else f"{value * 1e3:,.0f}" for value in values]


def print_statistics(rows: Sequence[Row]) -> None:
    """Prints how certain the throughput is, and what each step cost."""
    measured = [row for row in rows if row.measured]
    if not measured:
        return
    headers = ["runs", "median", "95 %\ninterval", "olym-\npic", "vari-\nation", "CPU ms\na step", "steady\nms",
               "warm-\nup"]  # fmt: skip
    table, names = _table("samples/s, last epoch", measured, headers)
    for row in measured:
        edges = row.samples_per_second_interval
        table.add_row(
            names[row.key], str(row.runs), _text(row.samples_per_second, format_rate),
            f"{format_rate(edges[0])} to {format_rate(edges[1])}" if edges else "–",
            _text(row.samples_per_second_olympic, format_rate), _text(row.variation, format_percent),
            _text(row.cpu_seconds_per_step, _milliseconds), _text(row.steady_step_seconds, _milliseconds),
            _text(row.warm_up_steps, lambda value: f"{value:.0f}"),
        )  # fmt: skip
    notes = [
        "interval: bootstrap of the median; olympic: mean without the best and the worst; variation: standard "
        "deviation over mean; steady: the middle step after warm-up, which lasts until the durations settle"
    ]
    if any(row.spec.device != "cpu" for row in measured):
        notes.append("on GPUs single steps are as the host launched them; epochs are as the GPU finished them")
    _print(table, notes)


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}" if seconds < 1 else f"{1e3 * seconds:,.0f}"


def print_energy(rows: Sequence[Row]) -> None:
    """Prints joules, and costs where a price was given."""
    metered = [row for row in rows if row.expense.energy_source or row.expense.cost_per_epoch is not None]
    if not metered:
        _say_unknown(rows, "energy was not measured here: these runs were made by an older version or have no counter")
        return
    priced = any(row.expense.cost_per_epoch is not None for row in metered)
    headers = ["J per\nepoch", "above\nidle", "J per\n1,000\nsamples", "J to\ntarget", "source"]
    headers += ["cost\nper\nepoch", "cost\nto\ntarget"] if priced else []
    table, names = _table("energy", metered, headers)
    for row in metered:
        spent = row.expense
        joules = (spent.joules_per_epoch, spent.joules_per_epoch_above_idle, spent.joules_per_1000_samples,
                  spent.joules_to_target)  # fmt: skip
        money = (spent.cost_per_epoch, spent.cost_to_target) if priced else ()
        table.add_row(
            names[row.key], *(_text(value, format_rate) for value in joules), spent.energy_source or "–",
            *(_text(value, format_money) for value in money),
        )  # fmt: skip
    notes = list(dict.fromkeys(filter(None, map(_source_note, metered))))
    if priced:
        notes.append(f"cost: workers x hours x {metered[0].expense.price_per_device_hour:g} per device-hour")
    _print(table, [_target_note(metered), *notes])


def print_memory(rows: Sequence[Row]) -> None:
    """Prints what each process held in memory."""
    with_memory = [row for row in rows if row.memory]
    if not with_memory:
        _say_unknown(rows, "the memory of processes was not recorded here: these runs were made by an older version")
        return
    on_device = any(rank.device_peak_bytes for row in with_memory for rank in row.memory)
    headers = ["rank", "role", "im-\nport", "stea-\ndy", "peak", *(["de-\nvice"] if on_device else []),
               "para-\nmeters", "opti-\nmizer", "gradi-\nents", "acti-\nvations"]  # fmt: skip
    table, names = _table("MB", with_memory, headers)
    for row in with_memory:
        for place, rank in enumerate(row.memory):
            table.add_row(names[row.key] if place == 0 else "", str(rank.rank), rank.role, *_sizes(rank, on_device))
    notes = [
        "import: resident once the framework was there; steady (after the first epoch's steps) and peak are above "
        "that, files' pages and evaluation aside" + ("; device: the allocator's peak" if on_device else ""),
        "parameters and optimizer: measured tensors; gradients and activations: computed from the strategy's footprint",
    ]
    _print(table, notes)


def print_convergence(rows: Sequence[Row]) -> None:
    """Prints when the target accuracy was reached, one line per configuration over all its seeds."""
    evaluated = [row for row in rows if row.convergence.final_accuracy is not None]
    if not evaluated:
        _say_unknown(rows, "no accuracy is known here")
        return
    series: dict[str, list[Row]] = {}
    for row in evaluated:
        series.setdefault(str(row.spec.model_dump(exclude={"seed"})), []).append(row)
    heads = [seeds[0] for seeds in series.values()]
    stale = any(row.convergence.staleness_mean is not None for row in evaluated)
    headers = ["seeds", "epochs\nto target", "seconds\nto target", "final\naccuracy", "lowest to\nhighest"]
    table, names = _table("convergence", heads, [*headers, *(["stale-\nness", "at\nmost"] if stale else [])], ["seed"])
    for seeds in series.values():
        result = seeds[0].convergence
        ends = f"{(result.final_accuracy_low or 0) * 100:.1f} – {(result.final_accuracy_high or 0) * 100:.1f} %"
        table.add_row(
            names[seeds[0].key], str(result.seeds),
            _text(_over_seeds(seeds, lambda row: row.convergence.epochs_to_target), format_rate),
            _text(_over_seeds(seeds, lambda row: row.convergence.seconds_to_target), format_rate),
            _text(result.final_accuracy, lambda value: f"{value * 100:.1f} %"), ends,
            *(_text(value, format_rate) for value in ((result.staleness_mean, result.staleness_max) if stale else ())),
        )  # fmt: skip
    notes = [_target_note(evaluated) + " (training time; evaluation is not in it)"]
    if stale:
        notes.append("staleness: updates by others between a worker's fetch and its push, mean and most")
    _print(table, notes)


def print_checkpoints(rows: Sequence[Row]) -> None:
    """Prints what a checkpoint took, in seconds and bytes."""
    saving = [row for row in rows if row.checkpoint.checkpoint_bytes is not None]
    if not saving:
        _say_unknown(rows, "no checkpoints were made here: run it with --checkpoint-every N")
        return
    table, names = _table(
        "checkpoints", saving, ["every\nsteps", "MB", "wri-\nters", "save\nms", "load\nms", "adds to\nthe time"]
    )
    for row in saving:
        cost = row.checkpoint
        table.add_row(
            names[row.key], str(row.spec.checkpoint_every), _text(cost.checkpoint_bytes, _megabytes),
            str(cost.checkpoint_writers), _text(cost.checkpoint_save_seconds, _milliseconds),
            _text(cost.checkpoint_load_seconds, _milliseconds),
            _text(cost.checkpoint_share, lambda value: f"{value * 100:.1f} %"),
        )  # fmt: skip
    _print(table, [
        "save: until the bytes are on the disk, the slowest rank's, for which all stand still; in no samples/s above; "
        "load: read back from the disk at the end and found to be what was held"
    ])  # fmt: skip


def print_membership(rows: Sequence[Row]) -> None:
    """Prints what each departure and arrival cost."""
    changed = [row for row in rows if row.membership]
    if not changed:
        _say_unknown(rows, "nobody left or joined here: run it with --membership leave:20,join:40")
        return
    headers = ["change", "stood\nstill s", "there\nafter s", "made\nagain", "left\nout", "before", "after", "went\non"]
    table, names = _table("samples lost", changed, headers)
    for row in changed:
        for place, change in enumerate(row.membership.changes if row.membership else ()):
            table.add_row(
                names[row.key] if place == 0 else "", f"{change.kind} {change.step}",
                f"{change.standstill_seconds:.2f}", _text(change.until_training_seconds, "{:.1f}".format),
                f"{change.samples_again:,}", f"{change.samples_left_out:,}",
                _text(change.samples_per_second_before, format_rate),
                _text(change.samples_per_second_after, format_rate), "yes" if change.went_on else "no",
            )  # fmt: skip
    _print(table, [
        "stood still: the longest time without new samples; there after: until the newcomer trained; made again: "
        "samples since the last checkpoint, or of an answer that was lost; left out: samples that nobody took over; "
        "before and after: samples/s while training went on"
    ])  # fmt: skip


TABLES: dict[str, Callable[[Sequence[Row]], None]] = {
    "breakdown": print_breakdown, "statistics": print_statistics, "energy": print_energy, "memory": print_memory,
    "convergence": print_convergence, "checkpoints": print_checkpoints, "membership": print_membership,
}  # fmt: skip


def _table(
    title: str, rows: Sequence[Row], headers: Sequence[str], unnamed: Sequence[str] = (), least_width: int = 18
) -> tuple[LongTable, dict[str, str]]:
    """An empty table, and the name of each row in it; fields in `unnamed` are not part of names."""
    varying = [name for name in varying_fields(rows) if name not in unnamed]
    names = {row.key: escape(f"{series_name(row, varying)} x{row.spec.workers}") for row in rows}
    return LongTable(title, headers, least_width=min(least_width, max(map(len, names.values())))), names


def _print(table: LongTable, notes: Sequence[str]) -> None:
    console = output()
    console.print()
    console.print(table)
    for note in notes:
        console.print(f"[dim]{escape(note)}[/]")


def _say_unknown(rows: Sequence[Row], why: str) -> None:
    if any(row.measured for row in rows):
        output().print(f"[dim]{escape(why)}[/]")


def _target_note(rows: Sequence[Row]) -> str:
    target = rows[0].convergence.target_accuracy
    return "no target: no accuracy is known" if target is None else f"target: {format_percent(target)} test accuracy"


def _source_note(row: Row) -> str | None:
    spent = row.expense
    if spent.energy_source is None:
        return None
    return _SOURCES[spent.energy_source].format(idle=f"{spent.idle_watts or 0:.3g}", watts=f"{spent.watts_per_core:g}"
                                                if spent.watts_per_core else "?")  # fmt: skip


def _sizes(rank: RankMemory, on_device: bool) -> list[str]:
    values = [rank.baseline_bytes, rank.steady_bytes, rank.peak_bytes, *([rank.device_peak_bytes] if on_device else []),
              rank.parameter_bytes, rank.optimizer_bytes, rank.gradient_bytes, rank.activation_bytes]  # fmt: skip
    return [_text(value, _megabytes) for value in values]


def _megabytes(count: float) -> str:
    return f"{count / MEGABYTE:,.1f}" if count < 1000 * MEGABYTE else f"{count / MEGABYTE:,.0f}"


def _text(value: Value, form: Callable[[float], str]) -> str:
    return "–" if value is None else form(value)


def _over_seeds(rows: Sequence[Row], value: Callable[[Row], Value]) -> Value:
    """The median over seeds, if every seed has a value."""
    values = [number for row in rows if (number := value(row)) is not None]
    return median_or_none(values) if len(values) == len(rows) else None


def print_progress(rows: Sequence[Row]) -> None:
    """Prints the noise scale of gradients and how much sooner training gets on; nothing where it is not known."""
    known = [row for row in rows if row.measured and row.noise_scale is not None]
    if not known:
        return
    table = plain_table(
        "progress", "batch", "noise\nscale", "90 %\ninterval", "speed-\nup", "worth of\na sample", "pro-\ngress"
    )
    varying = varying_fields(known)
    for row in known:
        worth = row.progress_speedup / row.speedup if row.progress_speedup and row.speedup else None
        table.add_row(
            escape(f"{series_name(row, varying)} x{row.spec.workers}"), f"{row.spec.samples_per_step:,}",
            f"{row.noise_scale:,.0f}", _noise_interval(row), _times(row.speedup),
            "–" if worth is None else format_percent(worth), _times(row.progress_speedup),
        )  # fmt: skip
    note = (
        "noise scale: of gradients, in samples, in the last epoch that tells it; worth of a sample: beside one in the "
        "batch of one worker (Pollux); progress: speed-up times that"
    )
    output().print()
    output().print(table)
    output().print(f"[dim]{note}[/]")


def _noise_interval(row: Row) -> str:
    measured = [noise for _, noise in row.noise]
    if not measured:
        return "of a run alike"
    low, high = measured[-1].low, measured[-1].high
    return f"{'–' if low is None else f'{low:,.0f}'} to {'–' if high is None else f'{high:,.0f}'}"


def _times(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}x"


def print_search(search: BatchSearch, compared: str | None) -> None:
    """Prints steps to the target of each batch with its best learning rate, the regimes and a comparison in words."""
    table = plain_table(
        f"batch to {search.target}", "best\nlr", "rates that\nreached it", "steps", "samples", "time of\nits steps"
    )
    for outcome in search.outcomes:
        few, many = min(outcome.steps), max(outcome.steps)
        middle = sorted(outcome.steps)[len(outcome.steps) // 2]
        seconds = outcome.step_seconds
        table.add_row(
            f"{outcome.batch:,}", f"{outcome.lr:g}", f"{len(outcome.reaching_rates)} of {len(outcome.rates)}",
            f"{few:,.0f}" if few == many else f"{few:,.0f} to {many:,.0f}", f"{middle * outcome.batch:,.0f}",
            "–" if seconds is None else format_seconds(seconds * middle),
        )  # fmt: skip
    console = output()
    console.print(f"\n[bold]{escape(search.title)}[/]")
    console.print(table)
    for sentence in (*describe_search(search), *([compared] if compared is not None else [])):
        console.print(escape(sentence))
