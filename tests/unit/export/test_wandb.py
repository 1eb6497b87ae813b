"""What Weights & Biases is told; with its client installed, what its own reader finds in the files."""

import sys
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import UserError
from paceline.export import exporter
from paceline.export.wandb import rows
from paceline.record import Record


def test_numbers_of_a_step_are_one_row_with_its_number(good: Record) -> None:
    first, second, epoch = rows(good)
    assert first == {"step": 0, "_timestamp": 1002.5, "step/seconds": 0.5, "step/loss": 2.0}
    assert second == {"step": 1, "_timestamp": 1003.0, "step/seconds": 0.5}
    assert (epoch["epoch"], epoch["epoch/samples_per_second"]) == (1, 512.0)


def test_without_its_client_it_is_said_how_to_get_it(good: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match=r"export to wandb needs its client, .*: pip install 'paceline\[wandb\]'"):
        exporter("wandb").write([good], ".", "configurations")


class _Client:
    """Takes what the client of Weights & Biases takes, and makes its folders."""

    def __init__(self) -> None:
        self.runs: list[dict[str, Any]] = []
        self.summary: dict[str, Any] = {}

    def Settings(self, **fields: Any) -> dict[str, Any]:
        return fields

    def init(self, **fields: Any) -> "_Client":
        self.runs.append({**fields, "rows": []})
        (Path(fields["dir"]) / "wandb" / f"offline-run-20200101-{fields['id']}").mkdir(parents=True)
        return self

    def define_metric(self, name: str, **_: Any) -> None:
        """Draws a metric against another."""

    def log(self, row: dict[str, float]) -> None:
        self.runs[-1]["rows"].append(row)

    def teardown(self) -> None:
        """Ends its process."""

    def finish(self, exit_code: int) -> None:
        self.runs[-1]["exit_code"] = exit_code


def test_a_record_is_a_run_of_its_study_and_exporting_again_adds_none(
    good: Record, bad: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = _Client()
    monkeypatch.setitem(sys.modules, "wandb", client)  # type: ignore[arg-type]
    said = exporter("wandb").write([good, bad], str(tmp_path), "configurations")
    assert said == f"2 runs added; upload them: wandb sync {tmp_path}/wandb/offline-run-*"
    assert exporter("wandb").write([good, bad], str(tmp_path), "runs").startswith("0 runs added, 2 there already")
    ours, broken = client.runs
    assert (ours["project"], ours["mode"], ours["config"]["strategy"]) == ("a study_with <odd> name", "offline", "fake")
    assert (ours["name"], len(ours["rows"])) == ("mnist-small fake x1, batch 256, epochs=2, run 1", 3)
    assert (ours["exit_code"], broken["exit_code"], broken["notes"]) == (0, 1, "it broke")


def test_the_client_itself_keeps_names_settings_and_curves(
    good: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb", reason="its client is not installed: pip install 'paceline[wandb]'")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    exporter("wandb").write([good], str(tmp_path), "configurations")
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    content = file.read_bytes()
    for text in ("mnist-small fake x1, batch 256, epochs=2, run 1", "step/loss", "epoch/samples_per_second"):
        assert text.encode() in content
