"""What MLflow is told; with MLflow installed, what its own client reads back."""

import sys
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import UserError
from paceline.export import exporter
from paceline.export.mlflow import entry, tracking_uri
from paceline.record import Record


def test_a_run_is_told_in_mlflows_units(good: Record) -> None:
    told = entry(good, "a run")
    assert told.name == "a run"
    assert (told.status, told.start_ms, told.end_ms) == ("FINISHED", 1_000_000, 1_001_500)
    assert ("step/loss", 2.0, 1_002_500, 0) in told.metrics
    assert told.params["strategy"] == "fake"
    assert told.tags["paceline.findings"] == "other_load"
    assert told.tags["environment.python"] == "3.12.1"


def test_a_failed_run_is_told_with_its_reason(bad: Record) -> None:
    told = entry(bad, "a run")
    assert (told.status, told.tags["paceline.reason"], told.metrics) == ("FAILED", "it broke", ())


def test_a_file_is_a_database_and_a_uri_is_kept(tmp_path: Path) -> None:
    assert tracking_uri(str(tmp_path / "m.db")) == f"sqlite:///{tmp_path / 'm.db'}"
    assert tracking_uri("http://localhost:5000") == "http://localhost:5000"


def test_without_mlflow_it_is_said_how_to_get_it(good: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(UserError, match=r"export to mlflow needs MLflow, .*: pip install 'paceline\[mlflow\]'"):
        exporter("mlflow").write([good], "mlflow.db", "configurations")


@pytest.fixture
def client(tmp_path: Path) -> Any:
    mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed: pip install 'paceline[mlflow]'")
    return mlflow.MlflowClient(tracking_uri=tracking_uri(str(tmp_path / "mlflow.db")))


@pytest.mark.filterwarnings("ignore")
def test_mlflow_reads_the_runs_and_exporting_again_adds_none(
    good: Record, bad: Record, client: Any, tmp_path: Path
) -> None:
    place = str(tmp_path / "mlflow.db")
    assert exporter("mlflow").write([good, bad], place, "configurations").startswith("2 runs added; look at them")
    assert exporter("mlflow").write([good, bad], place, "configurations").startswith("0 runs added, 2 there already")
    (run,) = client.search_runs([client.get_experiment_by_name(good.study).experiment_id])
    assert (run.info.status, run.info.start_time, run.data.params["workers"]) == ("FINISHED", 1_000_000, "1")
    assert [point.value for point in client.get_metric_history(run.info.run_id, "step/seconds")] == [0.5, 0.5]
    (run,) = client.search_runs([client.get_experiment_by_name(bad.study).experiment_id])
    assert (run.info.status, run.data.tags["paceline.reason"]) == ("FAILED", "it broke")
