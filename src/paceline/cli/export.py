"""`paceline export`: results for other tools."""

from typing import Annotated

import typer

from paceline.cli.options import make_option
from paceline.cli.shell.completion import exporter_names
from paceline.cli.terminal import Db, StudyName, errors, output
from paceline.errors import UserError
from paceline.store import DEFAULT_PATH, Store


def export(
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help="tensorboard, mlflow, wandb, csv, parquet, json.",
            metavar="KIND",
            show_default=False,
            autocompletion=exporter_names,
        ),
    ],
    out: Annotated[
        str | None, make_option("File or folder to write; for mlflow also a tracking server's URI.", "PLACE")
    ] = None,
    of: Annotated[
        str | None,
        make_option("Of csv and parquet, one line per: configurations (unless said), runs, epochs, steps.", "TABLE"),
    ] = None,
    study: StudyName = None,
    db: Db = DEFAULT_PATH,
) -> None:
    """Writes results for other tools: TensorBoard, MLflow, Weights & Biases, CSV, Parquet, JSON."""
    from paceline.export import exporter

    chosen = exporter(to)
    if of is not None and not chosen.one_table:
        raise UserError(f"--of {of} chooses a table, and {chosen.name} holds every level at once; leave it out")
    with Store.open_existing(db) as store:
        records = store.records(study, with_steps=True)
        studies = store.studies()
    if not records:
        problem = f"study {study!r} has no runs in {db}" if study else f"{db} holds no runs"
        there = f"; there are {', '.join(studies)}" if studies else "; run one first: paceline run quick"
        raise UserError(f"nothing to export: {problem}{there}")
    place = out or chosen.default_out
    with errors().status(f"writing {place}"):
        summary = chosen.write(records, place, of or "configurations")
    output().print(f"{chosen.name}: {place}", soft_wrap=True, markup=False)
    output().print(summary, soft_wrap=True, markup=False, style="dim")
