"""How good predictions over links are here: calibrates once, runs the study `links`, and compares by wall clock.

python benchmarks/links.py [--db FILE] [--system FILE] [--turns N]

With --db and --system, runs and measurements that are there are used again. Nothing is measured over a link before: a
system that was calibrated on loopback and the link's two numbers are all that predictions know. Of a configuration's
runs the shortest step counts, because other load only ever makes one longer. Needs the rights to make links.
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from rich.console import Console
from rich.table import Table

from paceline.calibrate.calibration import Calibrator
from paceline.contract.context import spec_facts
from paceline.execute import Listener, execute, plan_study
from paceline.plan import complete
from paceline.predict.validate import WALL, Row, validate_records
from paceline.scale import shrink
from paceline.spec import RunSpec
from paceline.store import Store
from paceline.study import Study
from paceline.systems.files import load_hardware, to_toml
from paceline.systems.hardware import Hardware
from paceline.systems.local import local_system

STUDY, SCALE, CALIBRATED_WITH = "links", "tiny", "mnist-small"
TARGETS = {"mean": 0.15, "worst": 0.30}


def calibrated(path: Path, say: Console) -> Hardware:
    """The system as `paceline calibrate` measures it, or as the file has it."""
    if not path.is_file():
        base = complete(RunSpec(workload=CALIBRATED_WITH, global_batch=64, steps=1))
        calibrator = Calibrator(
            local_system(), base, spec_facts(base), lambda text: say.print(f"[dim]{text}[/]"), lambda record: None,
            frameworks=["torch"],
        )  # fmt: skip
        system = calibrator.calibrate(load_hardware("cpu-2-cores"))
        path.write_text(to_toml(system.model_dump(mode="json", exclude_none=True)))
    return load_hardware(str(path))


class Told(Listener):
    """Says which run ended how."""

    def __init__(self, say: Console) -> None:
        self._say = say

    def ended(self, record: object) -> None:
        """One line for each run."""
        self._say.print(f"[dim]{record.spec.spread_over} {record.spec.link}: {record.status}[/]")  # type: ignore[attr-defined]


def run_study(store: Store, turns: int, say: Console) -> None:
    """Runs the study as often as there are turns; what is stored already is not run again."""
    study = shrink(Study.load(STUDY), SCALE)
    study = study.model_copy(update={"repeats": turns})
    execute(plan_study(study, store, retry=True), store, Told(say))


def shortest(store: Store, hardware: Hardware) -> list[Row]:
    """One row for each configuration that crossed a link: of its runs the one with the shortest step."""
    rows: dict[str, Row] = {}
    for record in store.records():
        if record.spec.link is not None and record.spec.workers > 1:
            for row in validate_records([record], hardware, WALL).rows:
                known = rows.get(record.key)
                rows[record.key] = row if known is None or row.measured < known.measured else known
    return sorted(rows.values(), key=_order)


def _order(row: Row) -> tuple[object, ...]:
    assert row.spec.link is not None
    return row.spec.link.delay_seconds, row.spec.strategy, str(row.spec.knobs), row.spec.link.bytes_per_second


def table_of(rows: Sequence[Row]) -> Table:
    table = Table("strategy", "link", "predicted", "measured", "error", "inside", box=None)
    for row in rows:
        assert row.spec.link is not None
        name = " ".join([row.spec.strategy, *(f"{name}={value}" for name, value in row.spec.knobs.items())])
        seconds = (f"{value * 1e3:.1f} ms" for value in (row.predicted.value, row.measured))
        table.add_row(name, row.spec.link.text, *seconds, f"{row.error:+.0%}", "yes" if row.inside else "no")
    return table


def summary(rows: Sequence[Row], what: str) -> str:
    errors = [abs(row.error) for row in rows]
    inside = mean(row.inside for row in rows)
    return (
        f"{what}: {len(rows)} rows, mean error {mean(errors):.1%} (wanted {TARGETS['mean']:.0%}), "
        f"worst {max(errors):.1%} (wanted {TARGETS['worst']:.0%}), {inside:.0%} inside their intervals"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--db", type=Path)
    parser.add_argument("--system", type=Path)
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    say = Console()
    with tempfile.TemporaryDirectory(prefix="paceline-links-") as folder:
        hardware = calibrated(options.system or Path(folder) / "system.toml", say)
        with Store.open(options.db or Path(folder) / "paceline.db") as store:
            run_study(store, options.turns, say)
            rows = shortest(store, hardware)
    say.print(table_of(rows))
    without, delayed = ([row for row in rows if bool(row.spec.link.delay_seconds) is kind] for kind in (False, True))  # type: ignore[union-attr]
    say.print(summary(without, "bandwidth alone"))
    for link in dict.fromkeys(row.spec.link for row in without):
        say.print(summary([row for row in without if row.spec.link == link], f"  {link.text if link else ''}"))
    if delayed:
        say.print(summary(delayed, "with a delay"))


if __name__ == "__main__":
    main()
