"""What starting a part of Paceline loads: the command line answers at once, a worker carries only what it uses."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.api import run
from paceline.spec import ModelFile
from paceline.study import Study

HEAVY = (
    "torch",
    "tensorflow",
    "jax",
    "polars",
    "altair",
    "vl_convert",
    "scipy",
    "numpy",
    "starlette",
    "uvicorn",
    "pandas",
)
NOT_IN_A_WORKER = (
    "paceline.cli", "paceline.figures", "paceline.report", "paceline.analysis", "paceline.store", "paceline.execute",
    "paceline.api", "paceline.export", "paceline.web", "starlette", "typer", "rich", "polars", "altair", "vl_convert",
    "jinja2",
)  # fmt: skip
SAY_LOADED = "import json, sys; print(json.dumps(sorted(sys.modules)))"
STARTS = {
    "import paceline": "import paceline",
    "the catalogue of strategies": "from paceline.strategies import strategies; strategies()",
    "paceline --help": """
import contextlib, io, sys
from paceline.cli import main
sys.argv = ["paceline", "--help"]
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    main()
""",
}
MODEL = """
import json
import sys
from pathlib import Path

from torch import nn


class Spy(nn.Linear):
    def forward(self, inputs):
        Path(__file__).with_suffix(".json").write_text(json.dumps(sorted(sys.modules)))
        return super().forward(inputs)


def build():
    return Spy(4, 2)
"""


def of(packages: tuple[str, ...], loaded: list[str]) -> list[str]:
    """The loaded modules that belong to one of the packages."""
    return [name for name in loaded if any(name == one or name.startswith(one + ".") for one in packages)]


@pytest.mark.parametrize("start", STARTS)
def test_starting_loads_no_framework_and_no_table_library(start: str, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-P", "-c", STARTS[start] + "\n" + SAY_LOADED],
        cwd=tmp_path, env=dict(os.environ), capture_output=True, text=True, check=True,
    )  # fmt: skip
    loaded = json.loads(ended.stdout.splitlines()[-1])
    assert "paceline" in loaded
    # The catalogue knows workloads, whose weights are NumPy's.
    heavy = HEAVY if "catalogue" not in start else tuple(name for name in HEAVY if name != "numpy")
    assert of(heavy, loaded) == []


def test_a_worker_is_started_without_framework_and_without_what_only_the_tool_needs(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-P", "-c", "import paceline.runs.worker\n" + SAY_LOADED],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    loaded = json.loads(ended.stdout)
    assert of((*NOT_IN_A_WORKER, "torch", "tensorflow", "jax", "scipy"), loaded) == []


@pytest.mark.torch
def test_a_worker_in_the_middle_of_a_step_has_loaded_nothing_that_only_the_tool_needs(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    (tmp_path / "spy.py").write_text(MODEL)
    fields = {"model": ModelFile.from_text(str(tmp_path / "spy.py")), "input_shape": [4], "classes": 2,
              "train_samples": 16, "global_batch": 8, "steps": 2, "strategy": "torch-single"}  # fmt: skip
    (record,) = run(Study(fixed=fields), tmp_path / "results.db").records
    assert record.ok, record.reason
    loaded = json.loads((tmp_path / "spy.json").read_text())
    assert "torch" in loaded
    assert of(NOT_IN_A_WORKER, loaded) == []
