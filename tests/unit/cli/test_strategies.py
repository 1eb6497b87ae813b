"""`paceline strategies --layouts` with options as users give them."""

import io
import json
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from paceline.cli import strategies as cli
from paceline.cli.strategies import strategies
from paceline.errors import SpecError
from paceline.layout import all_layouts
from paceline.predict.question import Question
from paceline.strategies import strategies as catalogue
from paceline.systems import System

LARGE: dict[str, Any] = {
    "workload": "transformer", "depth": 32, "width": 4096, "option": ["heads=32"], "input_shape": "2048",
    "classes": 128256,
}  # fmt: skip


def listed(capsys: pytest.CaptureFixture[str], **options: Any) -> dict[str, Any]:
    strategies(layouts=8, as_json=True, **options)
    values: dict[str, Any] = json.loads(capsys.readouterr().out)
    return values


def test_a_large_model_is_counted_and_the_system_says_what_fits(capsys: pytest.CaptureFixture[str]) -> None:
    values = listed(capsys, **LARGE, system="8xh100-nvlink", global_batch=16)
    assert values["strategy"] == "torch-mesh" and values["sorted_by"] == "held"
    assert len(values["layouts"]) + len(values["left_out"]) == len(all_layouts(8))
    for layout in values["layouts"]:
        held = dict(layout["held_bytes"])
        assert held.pop("sum") == pytest.approx(sum(held.values()))
        assert layout["kind"] == "counted"
        # What drivers hold, and a few per cent (of compiled steps a tenth), must be left.
        assert layout["fits"] or layout["memory_bytes"] > 72e9
        assert not layout["fits"] or layout["memory_bytes"] < 77e9
    assert all("why_not" in layout for layout in values["left_out"])


def test_without_a_system_nothing_is_said_of_fitting(capsys: pytest.CaptureFixture[str]) -> None:
    values = listed(capsys, workload="transformer", sort="sent")
    assert {layout["fits"] for layout in values["layouts"]} == {None}
    assert values["sorted_by"] == "sent"


def test_no_weights_are_made(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_given: object) -> None:
        raise AssertionError("weights were made")

    monkeypatch.setattr("paceline.workloads.base.initial_weights", fail)
    monkeypatch.setattr("paceline.contract.context.initial_weights", fail)
    assert listed(capsys, **LARGE, recompute="full", global_batch=64)["layouts"]


@pytest.mark.parametrize("columns", [80, 120])
def test_the_table_is_readable(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    from paceline.cli import terminal

    monkeypatch.setenv("COLUMNS", str(columns))
    terminal.output.cache_clear()
    strategies(layouts=8, **LARGE, system="8xh100-nvlink", global_batch=64)
    terminal.output.cache_clear()
    text = capsys.readouterr().out
    assert max(len(line.rstrip()) for line in text.splitlines()) <= columns
    assert "lightest rank first" in " ".join(text.split())
    assert "…" not in text
    assert "shard=2 tensor=2 pipeline=2" in " ".join(text.split()) or columns == 80


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"layouts": 0}, "--layouts 0 is no number of devices; give at least 1"),
        ({"layouts": 4, "sort": "size"}, "--sort 'size' is unknown"),
        ({"layouts": 4, "recompute": "some"}, "--recompute 'some' is unknown"),
        ({"layouts": 4, "precision": "fp1"}, "--precision 'fp1' is unknown"),
        ({"layouts": 4, "global_batch": 0}, "--global-batch 0 is below 1"),
        ({"layouts": 4, "strategy": "torch-ddp"}, "--strategy torch-ddp takes no layout; use torch-mesh"),
        ({"workload": "mlp"}, "--workload is about the layouts of a model; add --layouts N, or leave it out"),
        ({"layouts": 7, "global_batch": 1}, "no layout of 7 devices can be used"),
    ],
)
def test_what_is_wrong_is_told(options: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError) as caught:
        strategies(**options)
    assert said in str(caught.value)


def test_a_question_takes_a_layout_as_a_setting() -> None:
    from paceline.systems.files import load_hardware

    asked = Question(load_hardware("8xh100-nvlink"), workload="transformer", workers=(8,))
    (spec,) = asked.specs("torch-mesh", {"layout": "shard=2,tensor=4", "recompute": "full"})
    assert (spec.workers, spec.recompute) == (8, "full") and spec.layout is not None and spec.layout.tensor == 4


def test_the_table_of_strategies_is_complete_in_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    strategies()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["strategy", "here", "family", "sync", "holds", "sends", "devices"]
    assert "cpu, cuda, cuda-slice" in next(line for line in lines if line.startswith("torch-ddp"))
    assert not any("…" in line for line in lines)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_whether_a_strategy_runs_here_is_said_at_any_width(
    width: int, monkeypatch: pytest.MonkeyPatch, make_system: Callable[..., System]
) -> None:
    console = Console(width=width, file=io.StringIO())
    monkeypatch.setattr(cli, "output", lambda: console)
    monkeypatch.setattr(cli, "local_system", make_system)
    strategies()
    lines = console.file.getvalue().splitlines()
    assert lines[0].split()[:2] == ["strategy", "here"]
    here = {words[0]: words[1] for line in lines if (words := line.split()) and words[0] in catalogue()}
    assert here.keys() == catalogue().keys()
    assert here["torch-ddp"] == "yes" and here["tf-mirrored"] == "no"
    assert all(len(line) <= width for line in lines)
