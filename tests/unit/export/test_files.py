"""Exports to files: what is in them, and what is said when they cannot be written."""

import json
from pathlib import Path

import polars
import pytest

from paceline.analysis.labels import run_names
from paceline.errors import SpecError, UserError
from paceline.export import exporter, exporters
from paceline.export.base import points, settings
from paceline.record import Record
from paceline.spec import ModelFile, Optimizer


def test_every_kind_is_found_by_its_file() -> None:
    assert sorted(exporters()) == ["csv", "json", "mlflow", "parquet", "tensorboard", "wandb"]


def test_an_unknown_kind_is_refused_with_the_nearest() -> None:
    with pytest.raises(SpecError, match="there is no export 'tensorbord'; did you mean 'tensorboard'"):
        exporter("tensorbord")


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_table_reads_back_as_it_was(kind: str, good: Record, bad: Record, tmp_path: Path) -> None:
    path = tmp_path / "new" / "table"
    said = exporter(kind).write([good, bad], str(path), "runs")
    frame = polars.read_csv(path) if kind == "csv" else polars.read_parquet(path)
    assert frame["status"].to_list() == ["ok", "failed"]
    assert frame["samples_per_second"].to_list() == [512.0, None]
    assert frame["name"].to_list() == run_names([good, bad])
    assert said == f"2 lines, {frame.width} columns"


def test_json_holds_rows_findings_and_records_with_their_steps(good: Record, bad: Record, tmp_path: Path) -> None:
    exporter("json").write([good, bad], str(tmp_path / "all.json"), "configurations")
    values = json.loads((tmp_path / "all.json").read_text())
    assert [row["status"] for row in values["rows"]] == ["ok"]
    assert "other_load" in [finding["code"] for finding in values["findings"]]
    assert [Record.model_validate(one) for one in values["records"]] == [good, bad]
    assert values["names"] == run_names([good, bad])


def test_a_place_that_takes_no_file_is_said(good: Record, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for kind in ("csv", "json", "parquet", "tensorboard"):
        with pytest.raises(UserError, match=r"cannot be written: .*; choose another place with --out"):
            exporter(kind).write([good], str(tmp_path / "file" / "x"), "configurations")


def test_points_count_the_slowest_rank_and_leave_out_losses_that_were_not_finite(good: Record) -> None:
    found = [(point.name, point.step, point.value, point.seconds) for point in points(good)]
    assert found[:3] == [
        ("step/seconds", 0, 0.5, 1002.5), ("step/loss", 0, 2.0, 1002.5), ("step/seconds", 1, 0.5, 1003.0),
    ]  # fmt: skip
    assert ("epoch/samples_per_second", 1, 512.0, 1003.0) in found
    assert not any(name == "epoch/test_loss" for name, *_ in found)


def test_names_say_what_ran_and_tell_repeats_apart(good: Record, bad: Record) -> None:
    assert run_names([good, bad]) == [
        "mnist-small fake x1, batch 256, epochs=2, run 1", "mnist-small fake x1, batch 256, epochs=2, run 2",
    ]  # fmt: skip


def test_names_say_what_is_not_as_usual_and_number_versions_of_a_file(good: Record) -> None:
    spec = good.spec.model_copy(update={"seed": 3, "optimizer": Optimizer(lr=0.5), "precision": "bf16"})
    unusual = good.model_copy(update={"spec": spec})
    assert "seed=3, lr=0.5, precision=bf16" in run_names([unusual])[0]
    files = [ModelFile(path=Path("my.py"), digest=digest) for digest in ("a", "b")]
    first, second = (
        good.model_copy(update={"spec": good.spec.model_copy(update={"model": file}), "started_at": f"200{number}"})
        for number, file in enumerate(files)
    )
    assert [name.rpartition(", ")[2] for name in run_names([second, first])] == ["version 2", "run 1"]


def test_settings_are_plain_values_and_only_those_that_are_set(good: Record) -> None:
    found = settings(good)
    assert (found["strategy"], found["workers"], found["global_batch"]) == ("fake", 1, 256)
    assert "steps" not in found
    assert all(isinstance(value, bool | int | float | str) for value in found.values())
