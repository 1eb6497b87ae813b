"""How good predictions are here: calibrates, runs configurations that were not used for it, and compares.

python benchmarks/prediction.py [--quick] [--db FILE] [--system FILE] [--record FOLDER] [--speed-only]

With --db and --system, runs and measurements that are there are used again. Step times are compared by wall clock, or
by CPU seconds of all processes where other programs disturbed a run; each row says which.

A shared machine is now faster, now slower, for minutes at a time, and no model of it can know. So calibrating takes
turns with running: a calibration, every held-out configuration once, the next calibration, and so on. On both sides
the least disturbed counts: of calibrations as `paceline calibrate` joins them, of a configuration's runs the shortest
step. An interval is for what one run shows, so that each run counts for how many are inside.
"""

import argparse
import json
import tempfile
import time
from dataclasses import replace
from functools import reduce
from itertools import product
from pathlib import Path
from statistics import mean, median

from rich.console import Console
from rich.table import Column, Table

from paceline.calibrate.calibration import Calibrator
from paceline.calibrate.merge import merge_systems
from paceline.contract.context import spec_facts
from paceline.costs.footprint import ModelFacts
from paceline.execute import Listener, execute
from paceline.layout import all_layouts
from paceline.plan import Plan, PlannedRun, complete
from paceline.predict.prediction import Predictor
from paceline.predict.question import Question
from paceline.predict.validate import WALL, Row, summarise, validate_records
from paceline.recommend.answer import recommend
from paceline.spec import RunSpec
from paceline.store import Store
from paceline.systems.files import load_hardware, to_toml
from paceline.systems.hardware import Hardware
from paceline.systems.local import local_system

CALIBRATED_WITH = "mnist-small"
EPOCHS, STUDY, TURNS = 12, "held-out", 3
# Of the speed of predicting, the least disturbed of so many rounds counts.
ROUNDS = 5
# Repeats of each question's runs are numbered from a multiple of this on.
QUESTION_REPEATS = 1000
TARGETS = {"mean error": 0.08, "worst error": 0.20, "peak memory": 0.10}


def run_of(workload: str, strategy: str, workers: int, batch: int, steps: int, **fields: object) -> RunSpec:
    values = {"workload": workload, "strategy": strategy, "workers": workers, "global_batch": batch,
              "train_samples": batch * steps, "epochs": EPOCHS, **fields}  # fmt: skip
    return complete(RunSpec.model_validate(values))


WIDE = {"options": {"depth": 2, "width": 768}}
NARROW = {"options": {"depth": 2, "width": 192}}
# Batch sizes, models and strategies that calibrating with mnist-small never saw: there each strategy of a kind has it
# with 160 samples on every worker.
HELD_OUT = [
    run_of("mnist-small", "torch-single", 1, 32, 16),
    run_of("mnist-small", "torch-single", 1, 128, 16),
    run_of("mnist-small", "torch-single", 1, 512, 8),
    run_of("mnist-large", "torch-single", 1, 32, 3),
    run_of("mlp", "torch-single", 1, 128, 16),
    run_of("mlp", "torch-single", 1, 128, 12, **WIDE),
    run_of("transformer", "torch-single", 1, 16, 6),
    run_of("transformer", "torch-single", 1, 16, 6, **NARROW),
    *(
        run_of("mnist-small", name, 2, 256, 10)
        for name in (
            "torch-ddp", "torch-zero", "torch-fsdp", "torch-local-sgd", "torch-pipeline", "torch-tensor",
            "torch-layers", "torch-ps-sync",
        )
    ),
    run_of("mnist-small", "torch-ddp", 2, 64, 16),
    run_of("mlp", "torch-ddp", 2, 256, 10),
    run_of("mlp", "torch-fsdp", 2, 256, 10),
    run_of("mlp", "torch-zero", 2, 256, 10, **WIDE),
    run_of("transformer", "torch-ddp", 2, 32, 6),
    run_of("transformer", "torch-tensor", 2, 16, 6),
    run_of("mnist-large", "torch-ddp", 2, 64, 3),
]  # fmt: skip
# Questions whose whole grid is run, to see what following the advice costs: every one of these strategies.
SEVERAL = ("torch-ddp", "torch-zero", "torch-fsdp", "torch-pipeline", "torch-tensor", "torch-layers", "torch-ps-sync")
QUESTIONS = (("mnist-small", 256, 10), ("mlp", 256, 10), ("transformer", 32, 6))
GRID = {
    (workload, batch): [
        run_of(workload, name, workers, batch, steps)
        for name, workers in (("torch-single", 1), *((name, 2) for name in SEVERAL))
    ]
    for workload, batch, steps in QUESTIONS
}


def calibrated_in_turns(specs: list[RunSpec], path: Path, store: Store, say: Console) -> Hardware:
    """The least disturbed of as many calibrations as turns, each before a turn of all configurations."""
    known, systems = path.is_file(), []
    for turn in range(TURNS):
        if not known:
            started = time.perf_counter()
            systems.append(calibrated(say))
            say.print(f"calibration {turn + 1} of {TURNS}: {time.perf_counter() - started:.0f} s")
        _run([PlannedRun(spec, turn) for spec in specs], store, say)
    if systems:
        path.write_text(to_toml(reduce(merge_systems, systems).model_dump(mode="json", exclude_none=True)))
    return load_hardware(str(path))


def calibrated(say: Console) -> Hardware:
    """As `paceline calibrate` does it."""
    base = complete(RunSpec(workload=CALIBRATED_WITH, global_batch=64, steps=1))
    calibrator = Calibrator(
        local_system(), base, spec_facts(base), lambda text: say.print(f"[dim]{text}[/]"), lambda record: None,
        frameworks=["torch"],
    )  # fmt: skip
    return calibrator.calibrate(load_hardware("cpu-2-cores"))


def _run(runs: list[PlannedRun], store: Store, say: Console) -> None:
    done = store.done(only_ok=True)
    left = tuple(run for run in runs if (run.spec.key(), run.repeat) not in done)
    say.print(f"[dim]{len(left)} of {len(runs)} runs to make[/]")
    outcome = execute(Plan(STUDY, left, (), 0, tuple(run.spec.key() for run in left)), store, Listener())
    if outcome.failures:
        say.print(f"[red]{outcome.failures} runs failed[/]")


def rows_of(
    specs: list[RunSpec], hardware: Hardware, store: Store, first: int = 0, basis: str | None = None
) -> list[list[Row]]:
    """Each configuration's turns, numbered from `first` on; by the clock that suits each run, or by this one."""
    records = {(record.key, record.repeat): record for record in store.records() if record.ok}
    made = [
        [records[spec.key(), repeat] for repeat in range(first, first + TURNS) if (spec.key(), repeat) in records]
        for spec in specs
    ]
    return [[row for record in own for row in validate_records([record], hardware, basis).rows] for own in made if own]


def least_disturbed(turns: list[Row]) -> Row:
    """The shortest of those by the same clock, the wall clock if any went by it; and the median of all peaks."""
    peaks = _peaks(turns)
    return replace(_by_length(turns)[0], memory_measured=median(peaks) if peaks else None)


def middle(turns: list[Row]) -> Row:
    """The one that half of those by the same clock are not longer than."""
    rows = _by_length(turns)
    return rows[len(rows) // 2]


def _by_length(turns: list[Row]) -> list[Row]:
    return sorted([row for row in turns if row.basis == WALL] or turns, key=lambda row: row.measured)


def _peaks(turns: list[Row]) -> list[float]:
    return [row.memory_measured for row in turns if row.memory_measured]


def show(found: list[list[Row]], console: Console) -> None:
    names = ("predicted ms", "90 %", "measured ms", "error", "inside", "memory error")
    numbers = (Column(name, justify="right") for name in names)
    table = Table("configuration", Column("by", justify="left"), *numbers, box=None)
    for turns in found:
        row = least_disturbed(turns)
        spec = row.spec
        options = "".join(f" {name}={value}" for name, value in spec.options.items())
        memory = f"{row.memory_error:+.0%}" if row.memory_error is not None else "–"
        table.add_row(
            f"{spec.workload}{options} {spec.strategy} x{spec.workers} batch {spec.samples_per_step}", row.basis,
            f"{row.predicted.value * 1e3:.2f}", f"{row.predicted.low * 1e3:.2f} – {row.predicted.high * 1e3:.2f}",
            f"{row.measured * 1e3:.2f}", f"{row.error:+.0%}", f"{sum(one.inside for one in turns)} of {len(turns)}",
            memory,
        )  # fmt: skip
    console.print(table)


def report(found: list[list[Row]], console: Console) -> None:
    rows, runs = [least_disturbed(turns) for turns in found], [row for turns in found for row in turns]
    total = summarise(rows)
    console.print(
        f"step time: mean error {total.mean_error:.1%} (at most {TARGETS['mean error']:.0%}), worst "
        f"{total.worst_error:.1%} (at most {TARGETS['worst error']:.0%}), intervals cover "
        f"{mean(run.inside for run in runs):.0%} of {len(runs)} runs (80 to 97 %), order kept in "
        f"{total.order_kept or 0:.0%} of pairs, {total.rows} held-out configurations"
    )
    usual, single = summarise([middle(turns) for turns in found]), summarise(runs)
    console.print(
        f"step time: by the median of {TURNS} runs, whatever disturbed them: mean error {usual.mean_error:.1%}, worst "
        f"{usual.worst_error:.1%}; of all {single.rows} runs by themselves: mean error {single.mean_error:.1%}"
    )
    exact = [row.held_predicted == row.held_measured for row in rows if row.held_measured is not None]
    peaks = [abs(row.memory_error) for row in rows if row.memory_error is not None]
    console.print(
        f"memory: parameter and optimizer bytes exact in {sum(exact)} of {len(exact)}; peak: mean error "
        f"{mean(peaks):.1%}, worst {max(peaks):.1%} (at most {TARGETS['peak memory']:.0%}), "
        f"{sum(peak <= TARGETS['peak memory'] for peak in peaks)} of {len(peaks)} within it, intervals cover "
        f"{mean(run.memory_inside for run in runs):.0%} of {len(runs)} runs"
    )
    apart = [abs(peak / median(own) - 1) for turns in found if (own := _peaks(turns)) for peak in own]
    console.print(
        f"memory: peaks of runs of one and the same configuration: mean distance from their median {mean(apart):.1%}, "
        f"worst {max(apart):.1%}"
    )


def keep(found: list[list[Row]], hardware: Hardware, folder: Path) -> None:
    """The system and what was measured, for `tests/validation` and the guide."""
    (folder / "system.toml").write_text(to_toml(hardware.model_dump(mode="json", exclude_none=True)))
    kept = [
        {
            "spec": row.spec.model_dump(mode="json", include={"workload", "strategy", "workers", "global_batch",
                                                              "options", "train_samples", "epochs", "dataset"}),
            "basis": row.basis, "measured_seconds": row.measured, "predicted_seconds": row.predicted.value,
            "peak_bytes": row.memory_measured, "held_bytes": row.held_measured,
            "turns": [{"basis": one.basis, "measured_seconds": one.measured} for one in turns],
        }
        for turns in found
        for row in [least_disturbed(turns)]
    ]  # fmt: skip
    (folder / "recorded.json").write_text(json.dumps({"rows": kept}, indent=1) + "\n")


def advice(store: Store, hardware: Hardware, console: Console) -> None:
    """The time of what is recommended over that of the best in the whole grid."""
    losses = []
    for number, ((workload, batch), specs) in enumerate(GRID.items(), start=1):
        first = number * QUESTION_REPEATS
        _run([PlannedRun(spec, first + turn) for turn in range(TURNS) for spec in specs], store, console)
        found = map(least_disturbed, rows_of(specs, hardware, store, first, basis=WALL))
        steps = {(row.spec.strategy, row.spec.workers): row.measured for row in found}
        question = Question(
            hardware=hardware, workload=workload, global_batches=(batch,), workers=(1, 2),
            strategies=("torch-single", *SEVERAL),
        )  # fmt: skip
        pick = recommend(question).pick
        if pick is None or (pick.spec.strategy, pick.spec.workers) not in steps:
            continue
        best = min(steps, key=lambda place: steps[place])
        chosen = pick.spec.strategy, pick.spec.workers
        losses.append(steps[chosen] / steps[best] - 1)
        console.print(
            f"advice: {workload} batch {batch}: {chosen[0]} x{chosen[1]} at {steps[chosen] * 1e3:.1f} ms, best "
            f"{best[0]} x{best[1]} at {steps[best] * 1e3:.1f} ms: {losses[-1]:.1%} lost, 0 of {len(steps)} runs used"
        )
    console.print(f"advice: mean loss {mean(losses):.1%} (at most 3 %), worst {max(losses):.1%} (at most 10 %)")


def speed(console: Console) -> None:
    hardware = load_hardware("8xh100-nvlink")
    spec = complete(RunSpec(workload="mnist-large", strategy="torch-ddp", device="cuda", global_batch=512, steps=1))
    facts: ModelFacts = spec_facts(spec)
    predictor = Predictor(hardware, facts, 60_000)
    specs = [
        spec.model_copy(update={"workers": 1 + number % 512, "global_batch": 512 * (1 + number % 64)})
        for number in range(5000)
    ]
    taken = []
    for _ in range(ROUNDS):
        started = time.process_time()
        for one in specs:
            predictor.predict(one)
        taken.append(time.process_time() - started)
    console.print(f"speed: {len(specs) / min(taken):,.0f} data-parallel predictions per CPU second (at least 10,000)")
    large = spec.model_copy(update={"workers": 100_000, "global_batch": 100_000 * 4})
    for name in ("torch-ddp", "torch-fsdp"):
        started = time.process_time()
        predictor.predict(complete(large.model_copy(update={"strategy": name})))
        console.print(f"speed: {name} on 100,000 devices in {time.process_time() - started:.3f} s (under 1)")
    question = Question(
        hardware=hardware, workload="transformer", options={"depth": 48, "width": 8192}, workers=tuple(range(1, 1025))
    )
    started = time.process_time()
    recommend(question)
    console.print(f"speed: recommend over 1 to 1,024 workers in {time.process_time() - started:.2f} s (under 2)")


def layouts_speed(console: Console) -> None:
    """All layouts of 64 GPUs with several batches of a pass, kept or recomputed, of a transformer of like blocks.

    Whole predictions first, seconds alone and with the peak of memory; then candidates of a search, of which nearly all
    are only screened.
    """
    specs = layouts_of(transformer_question())
    for memory, what in ((False, "whole predictions of a layout's step"), (True, "with its peak of memory")):
        rates = []
        for _ in range(ROUNDS):
            predictor = transformer_question().predictor
            rates += [[rate_of(specs, predictor, memory), rate_of(specs, predictor, memory)]]
        first, again = (max(rate) for rate in zip(*rates, strict=True))
        console.print(
            f"speed: {len(specs)} layouts and batches of a transformer of 48 blocks on 64 devices: {first:,.0f} {what} "
            f"per CPU second at first, {again:,.0f} again"
        )
    question = Question(
        hardware=load_hardware("h100-nvlink"), workload="llama", options={"size": "70b"}, workers=(1024,),
        global_batches=(4096,), strategies=("torch-mesh",),
    )  # fmt: skip
    taken = []
    for _ in range(ROUNDS):
        started = time.process_time()
        # A new question each time: what one has worked out, the next does not know.
        answer = recommend(replace(question))
        taken.append(time.process_time() - started)
    console.print(
        f"speed: recommend of 70 billion parameters on 1,024 devices: {answer.considered / min(taken):,.0f} candidates "
        f"per CPU second (at least 10,000): {answer.considered:,} screened and {answer.predictions} predicted in "
        f"{min(taken):.2f} s, steps traced before"
    )


def transformer_question() -> Question:
    options = {"depth": 48, "width": 4096, "heads": 32, "sequence": 2048}
    return Question(
        hardware=load_hardware("a100-nvlink"), workload="gpt", options=options, workers=(64,), global_batches=(1024,),  # type: ignore[arg-type]
        strategies=("torch-mesh",), layouts=all_layouts(64), precision="bf16",
    )  # fmt: skip


def layouts_of(question: Question) -> list[RunSpec]:
    """Those that can be run."""
    specs = []
    for spec in question.specs("torch-mesh"):
        for parts, again in product((4, 8, 16), ("none", "full")):
            assert spec.layout is not None
            piped = spec.layout.pipeline > 1
            passes = {"knobs": {"microbatches": 4 * parts}} if piped else {"accumulation": parts}
            one = spec.model_copy(update={**passes, "recompute": again})
            if question.why_not(one) is None:
                specs.append(one)
    return specs


def rate_of(specs: list[RunSpec], predictor: Predictor, memory: bool) -> float:
    """Predictions in a second of CPU time."""
    started = time.process_time()
    for spec in specs:
        prediction = predictor.predict(spec)
        if memory:
            _ = prediction.memory
    return len(specs) / (time.process_time() - started)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--quick", action="store_true", help="every third held-out configuration only")
    options.add_argument("--db", type=Path)
    options.add_argument("--system", type=Path)
    options.add_argument("--record", type=Path, help="folder to keep the system and the held-out rows in")
    options.add_argument("--speed-only", action="store_true")
    given, console = options.parse_args(), Console(width=150, highlight=False)
    if not given.speed_only:
        with tempfile.TemporaryDirectory() as folder:
            path = given.system or Path(folder) / "system.toml"
            with Store.open(given.db or Path(folder) / "runs.db") as store:
                specs = HELD_OUT[:: 3 if given.quick else 1]
                hardware = calibrated_in_turns(specs, path, store, console)
                found = rows_of(specs, hardware, store)
                show(found, console)
                report(found, console)
                if given.record:
                    keep(found, hardware, given.record)
                if not given.quick:
                    advice(store, hardware, console)
    speed(console)
    layouts_speed(console)


if __name__ == "__main__":
    main()
