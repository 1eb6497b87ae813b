"""`paceline trace`: a few steps of a run as a timeline for Perfetto or Chrome."""

import json
from pathlib import Path
from typing import Annotated

import typer

from paceline.analysis.selection import Selector
from paceline.analysis.traces import to_trace
from paceline.cli.terminal import Db, StudyName, output
from paceline.errors import SpecError, UserError
from paceline.record import Record
from paceline.store import DEFAULT_PATH, Store


def trace(
    which: Annotated[
        str, typer.Argument(help="A strategy, or one with fields: torch-ddp:workers=2,workload=mnist-small.")
    ],
    study: StudyName = None,
    db: Db = DEFAULT_PATH,
    out: Annotated[Path, typer.Option("--out", help="Where to write it.", metavar="FILE")] = Path("trace.json"),
) -> None:
    """A timeline of a few steps, one track per rank, that ui.perfetto.dev and chrome://tracing open."""
    selector = Selector.parse(which)
    with Store.open_existing(db) as store:
        records = store.records(study)
    found = [record for record in records if record.timeline and selector.takes(record.spec)]
    if not found:
        raise SpecError(_nothing_traced(selector, records))
    chosen = found[-1]
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(to_trace(chosen)))
    except OSError as error:
        raise UserError(f"the trace cannot be written to {out}: {error.strerror}; choose another with --out") from None
    spec = chosen.spec
    output().print(f"trace of {spec.strategy} x{spec.workers}, {spec.workload}: {out}", soft_wrap=True)
    if len(found) > 1:
        output().print(f"[dim]the newest of {len(found)} that match; name fields to choose another[/]")


def _nothing_traced(selector: Selector, records: list[Record]) -> str:
    known = sorted({f"{one.spec.strategy}:workers={one.spec.workers}" for one in records if one.timeline})
    there = f"there are {', '.join(known)}" if known else "there is none yet"
    return f"no instrumented run of {selector} is stored, {there}; make one with paceline run ... --breakdown"
