"""Paceline from Python: `paceline.run(Study(...))` gives results with tables, figures and the records themselves."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.analysis.findings import GatheredFinding, gather_findings
from paceline.analysis.rows import Row, summarise
from paceline.errors import UserError
from paceline.execute import Listener, execute, plan_study
from paceline.fleet import parse_fleet
from paceline.record import Record
from paceline.runs.fleets import open_machines
from paceline.runs.meters.room import free_bytes, leave_out_what_cannot_fit
from paceline.runs.probe import probe
from paceline.store import DEFAULT_PATH, Store
from paceline.study import Study
from paceline.systems import local_system
from paceline.units import format_count

if TYPE_CHECKING:
    import altair
    import pandas
    import polars

    from paceline.report.notebook import Gallery


@dataclass(frozen=True, repr=False)
class Results:
    """Records of runs, and the tables, figures and reports made of them."""

    records: tuple[Record, ...]

    @cached_property
    def rows(self) -> list[Row]:
        """The results, one row per configuration."""
        return summarise(self.records)

    @property
    def findings(self) -> list[GatheredFinding]:
        """The findings that belong to the numbers."""
        return gather_findings(self.records, self.rows)

    def table(self, of: str = "configurations") -> "polars.DataFrame":
        """One line per configuration (medians, spread, speed-up, efficiency), or per `runs`, `epochs`, `steps`."""
        from paceline.analysis.tables import frame_of

        return frame_of(self.records, of)

    def to_pandas(self, of: str = "configurations") -> "pandas.DataFrame":
        """The same table for pandas."""
        try:
            import pandas
        except ImportError:
            raise UserError("to_pandas() needs pandas, which is not installed: pip install pandas") from None
        return pandas.DataFrame(self.table(of).to_dict(as_series=False))

    def export(self, to: str, out: Path | str | None = None, of: str = "configurations") -> str:
        """Writes the results for another tool, named as for `paceline export --to`, and returns where they are."""
        from paceline.export import exporter

        chosen = exporter(to)
        place = chosen.default_out if out is None else str(out)
        chosen.write(self.records, place, of)
        return place

    def figure(self, name: str = "scaling") -> "altair.TopLevelMixin":
        """A figure by name as a chart of altair: it displays itself in a notebook and has `.save(path)`."""
        from paceline.figures import figure

        return figure(name).draw(self.rows)

    def figures(self, *names: str) -> "Gallery":
        """Pictures of every figure that these results can answer, or of the named ones, for a notebook."""
        from paceline.figures import figure, figures
        from paceline.figures.render import RENDERER, vega_lite
        from paceline.report.notebook import Gallery

        shown = [figure(name) for name in names] or [each for each in figures().values() if each.applies(self.rows)]
        return Gallery({each.question: RENDERER.draw("svg", vega_lite(each, self.rows)).decode() for each in shown})

    def _repr_html_(self) -> str:
        from paceline.report.notebook import results_html

        return results_html(self.records, self.rows)

    def __repr__(self) -> str:
        return f"{format_count(len(self.records), 'run')} of {format_count(len(self.rows), 'configuration')}"

    def report(self, path: Path | str = "paceline-report.html") -> Path:
        """Writes the report page."""
        from paceline.report import write_report

        return write_report(self.records, Path(path))


def run(
    study: Study, db: Path | str = DEFAULT_PATH, *, fresh: bool = False, listener: Listener | None = None,
    on: str | None = None, force: bool = False,
) -> Results:  # fmt: skip
    """Makes the runs that the study still lacks, here or on the fleet that `on` names, and returns all its results.

    What cannot fit in this machine's memory is skipped unless `force` is given.
    """
    with Store.open(Path(db)) as store, open_machines(parse_fleet(on)) as machines:
        plan = plan_study(study, store, fresh=fresh, machines=machines)
        if not force:
            plan = leave_out_what_cannot_fit(plan, probe, free_bytes(), local_system().gpus)
        outcome = execute(plan, store, listener or Listener(), machines)
        if outcome.interrupted:
            raise KeyboardInterrupt
        keys = set(outcome.plan.keys)
        return Results(tuple(record for record in store.records(study.name, with_steps=True) if record.key in keys))


def load(db: Path | str = DEFAULT_PATH, study: str | None = None) -> Results:
    """The results in a results file."""
    with Store.open_existing(Path(db)) as store:
        return Results(tuple(store.records(study, with_steps=True)))
