"""`paceline timeline`: a few steps of an instrumented run as a timeline for Perfetto or Chrome."""

import json
from pathlib import Path
from typing import Annotated

import typer

from paceline.analysis.selection import Selector
from paceline.analysis.timeline import chrome_timeline
from paceline.cli.options import make_option
from paceline.cli.terminal import Db, StudyName, output, refuse_unknown_study
from paceline.errors import SpecError, user_can_choose
from paceline.record import Record
from paceline.store import DEFAULT_PATH, Store


def timeline(
    which: Annotated[
        str, typer.Argument(help="A strategy, or one with fields: torch-ddp:workers=2,workload=mnist-small.")
    ],
    study: StudyName = None,
    db: Db = DEFAULT_PATH,
    out: Annotated[Path, make_option("Where to write it.", "FILE")] = Path("timeline.json"),
) -> None:
    """A timeline of a few steps, one track per rank, that ui.perfetto.dev and chrome://tracing open."""
    selector = Selector.parse(which)
    with Store.open_existing(db) as store:
        refuse_unknown_study(store, study)
        records = store.records(study)
    matching = [record for record in records if record.timeline and selector.matches(record.spec)]
    if not matching:
        raise SpecError(_no_timeline(selector, records))
    newest = matching[-1]
    with user_can_choose(f"the timeline cannot be written to {out}", "with --out"):
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(chrome_timeline(newest)))
    spec = newest.spec
    output().print(f"timeline of {spec.strategy} x{spec.workers}, {spec.workload}: {out}", soft_wrap=True)
    if len(matching) > 1:
        output().print(f"[dim]the newest of {len(matching)} that match; name fields to choose another[/]")


def _no_timeline(selector: Selector, records: list[Record]) -> str:
    stored = sorted({f"{record.spec.strategy}:workers={record.spec.workers}" for record in records if record.timeline})
    there = f"there are {', '.join(stored)}" if stored else "there is none yet"
    return f"no instrumented run of {selector} is stored, {there}; make one with paceline run ... --breakdown"
