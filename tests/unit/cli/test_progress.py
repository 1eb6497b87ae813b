"""What a plan and its progress call each run: by the fields in which runs of the plan differ."""

from typing import Any

import pytest

from paceline.cli.progress import Progress, print_plan, run_name
from paceline.cli.terminal import output
from paceline.plan import Plan, PlannedRun, complete
from paceline.spec import RunSpec


def plan(*fields: dict[str, Any]) -> Plan:
    usual = {
        "workload": "llama",
        "strategy": "torch-mesh",
        "layout": "shard=2,tensor=2",
        "global_batch": 32,
        "steps": 1,
    }
    specs = [complete(RunSpec.parse({**usual, **more}, "test")) for more in fields]
    return Plan("some", tuple(PlannedRun(spec, 0) for spec in specs), (), 0, tuple(spec.key() for spec in specs))


def test_a_dry_run_tells_configurations_apart(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    # Another test may have made the console, as wide as it was then.
    monkeypatch.setattr("paceline.cli.progress.output", output.__wrapped__)
    print_plan(plan({}, {"recompute": "full"}, {"accumulation": 4}, {"accumulation": 4, "instrumented": True}))
    said = capsys.readouterr().out
    for words in ("tensor=2 recompute=full  ", "tensor=2 accumulation=4  ", "accumulation=4 instrumented  "):
        assert said.count(words) == 1, said


def test_a_line_of_progress_names_what_varies_and_nothing_else() -> None:
    made = plan({"precision": "bf16"}, {"precision": "bf16", "recompute": "full"})
    progress = Progress()
    progress.planned(made)
    progress.started(made.to_run[1], 1)
    assert progress._label == "llama torch-mesh shard=2,tensor=2 recompute=full"
    assert run_name(made.to_run[1].spec) == "llama torch-mesh shard=2,tensor=2"
