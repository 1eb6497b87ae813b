"""A results file that the version before wrote shows the numbers that it showed then.

`before.db` has runs of `fake`, `torch-ddp` and `torch-ps-sync`, timed and instrumented; `before.json` is what
`paceline show --json` of that version printed of it.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Printed = Callable[..., str]
STORED = Path(__file__).parent / "stored"
FIELDS_ADDED_LATER = {"layout": None, "accumulation": 1, "recompute": "none", "clip": None, "transport": "auto",
                      "reduction": None, "offload": False, "machines": "", "link": None,
                      "batch_norm": "local", "dropout": "by-worker"}  # fmt: skip
# Of data that are read while training goes on, which neither store has.
LOADER_FIELDS = {"loader_workers": 0, "prefetch": None, "pin_memory": False}
# Of runs with checkpoints and of runs whose members change, which neither store has.
COLUMNS_OF_CHECKPOINTS = dict.fromkeys((
    "checkpoint_every", "checkpoint_to", "membership", "checkpoint_writers", "checkpoint_bytes",
    "checkpoint_save_seconds", "checkpoint_load_seconds", "checkpoint_share",
))  # fmt: skip

# What runs measured then and was not shown.
SHOWN_LATER = {"test_loss"}


def shown_then(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in SHOWN_LATER}


@pytest.fixture
def old_store(tmp_path: Path) -> Path:
    """A copy: opening a results file may leave files beside it."""
    return Path(shutil.copy(STORED / "before.db", tmp_path))


def test_every_row_of_an_old_store_has_the_numbers_that_it_had(printed: Printed, old_store: Path) -> None:
    rows = json.loads(printed("show", "--db", old_store, "--json"))["rows"]
    before = json.loads((STORED / "before.json").read_text())["rows"]
    assert list(map(shown_then, rows)) == [
        {**row, **FIELDS_ADDED_LATER, **LOADER_FIELDS, **COLUMNS_OF_CHECKPOINTS} for row in before
    ]


def test_an_old_store_has_its_breakdowns_and_timelines(printed: Printed, old_store: Path, tmp_path: Path) -> None:
    text = printed("show", "--db", old_store, "--breakdown")
    assert "torch-ddp x2        0  19.1 0.1  2.9   9.4   3.6   1.9   0.8   0.4  5.0" in text
    printed("timeline", "torch-ddp:workers=2", "--db", old_store, "--out", tmp_path / "timeline.json")
    events = json.loads((tmp_path / "timeline.json").read_text())["traceEvents"]
    assert {event["pid"] for event in events} == {0, 1}
    assert {"forward", "backward", "optimizer"} <= {event.get("cat") for event in events}


# Of strategies that are layouts now: what their own footprint counted.
COUNTED_BEFORE = ("gradient_bytes_computed", "activation_bytes_computed")


def test_runs_under_former_names_show_as_they_did(printed: Printed, tmp_path: Path) -> None:
    # `hybrids.db` has runs of the three fixed hybrids and of one worker, and `hybrids.json` is what was printed of it.
    store = Path(shutil.copy(STORED / "hybrids.db", tmp_path))
    rows = json.loads(printed("show", "--db", store, "--json"))["rows"]
    before = json.loads((STORED / "hybrids.json").read_text())["rows"]
    assert len({row["strategy"] for row in before if row["speedup"]}) == 4
    for row, old in zip(rows, before, strict=True):
        added = {
            "machines": "",
            "link": None,
            "batch_norm": "local",
            "dropout": "by-worker",
            **LOADER_FIELDS,
            **COLUMNS_OF_CHECKPOINTS,
            **dict.fromkeys(COUNTED_BEFORE),
        }
        assert {**shown_then(row), **dict.fromkeys(COUNTED_BEFORE)} == {**old, **added}
    assert "torch-ddp-tensor" in printed("compare", "torch-ddp-pipeline", "torch-ddp-tensor:tensor=2", "--db", store)
    printed("report", "--db", store, "--out", tmp_path / "report.html")
    assert "torch-ddp-pipeline" in (tmp_path / "report.html").read_text()
