"""Predictions beside logged runs: summaries, order, and what a choice loses, in numbers to follow by hand."""

from dataclasses import replace
from pathlib import Path

import pytest

from paceline.predict.against import ComparedRun, Comparison, compare
from paceline.predict.estimate import Estimate
from paceline.predict.logged import LoggedRun, read_log
from paceline.systems.files import load_hardware

COLUMNS = "gpus,global_batch,micro_batch,width,heads,depth,sequence,tensor,data,pipeline,step_seconds\n"
LAYOUTS = {"data": "1,8,1", "tensor": "8,1,1", "pipeline": "1,1,8", "mixed": "2,2,2"}


@pytest.fixture
def runs(tmp_path: Path) -> dict[str, LoggedRun]:
    path = tmp_path / "runs.csv"
    path.write_text(COLUMNS + "".join(f"8,64,1,1024,16,8,512,{layout},1.0\n" for layout in LAYOUTS.values()))
    return dict(zip(LAYOUTS, read_log(path).runs, strict=True))


def compared(runs: dict[str, LoggedRun], seconds: dict[str, tuple[float, float]]) -> Comparison:
    """Of each layout the logged and the predicted seconds; intervals are a tenth wide."""
    rows = [
        ComparedRun(replace(runs[name], step_seconds=logged), Estimate(predicted, 0.9 * predicted, 1.1 * predicted), 1)
        for name, (logged, predicted) in seconds.items()
    ]
    return Comparison(tuple(rows), {})


def test_errors_bias_and_coverage_are_summed_up(runs: dict[str, LoggedRun]) -> None:
    found = compared(runs, {"data": (1.0, 1.05), "tensor": (2.0, 1.0), "mixed": (1.0, 1.2)})
    total = found.total
    assert (total.runs, total.coverage) == (3, pytest.approx(1 / 3))
    assert total.mean_error == pytest.approx((0.05 + 0.5 + 0.2) / 3)
    assert (total.median_error, total.bias, total.worst_error) == (pytest.approx(0.2), pytest.approx(0.05), 0.5)
    assert set(found.by_layout) == {"replicate", "tensor", "pipeline+replicate+tensor"}


def test_a_choice_by_prediction_loses_what_its_layout_took_longer(runs: dict[str, LoggedRun]) -> None:
    found = compared(runs, {"data": (1.3, 1.5), "tensor": (1.0, 1.2), "pipeline": (1.1, 1.1)})
    assert found.loss_of_predicted is not None and found.loss_of_data_parallel is not None
    assert found.loss_of_predicted.mean_loss == pytest.approx(0.1)
    assert found.loss_of_data_parallel.worst_loss == pytest.approx(0.3)
    assert found.rank_correlation == pytest.approx(0.5)


def test_runs_are_predicted_and_those_that_cannot_be_are_named(runs: dict[str, LoggedRun]) -> None:
    wrong = replace(runs["data"], name="row 9", spec=runs["data"].spec.model_copy(update={"strategy": "absent"}))
    found = compare([*runs.values(), wrong], load_hardware("a100-nvlink"), {"row 10": "no width"})
    assert "absent" in found.refused["row 9"] and found.refused["row 10"] == "no width"
    assert len(found.rows) == len(LAYOUTS)
    assert all(row.predicted.low < row.predicted.value < row.predicted.high for row in found.rows)
