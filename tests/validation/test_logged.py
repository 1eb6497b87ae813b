"""Logged steps of Megatron-DeepSpeed on A100s: half of the runs are fitted, and the other half is predicted.

`megatron-a100-sample.csv` has 72 of the measurements that were published with vTrain (Bang et al., "vTrain: A
Simulation Framework for Evaluating Cost-effective and Compute-optimal Large Language Model Training", MICRO 2024;
repository VIA-Research/vTrain, `data/`): GPT in half precision, blocks recomputed, unfused attention, 8 GPUs in a node.
Where a larger file of them lies in `shared/data/measured` of this checkout or beside it, that is used as well.
"""

import json
import os
import subprocess
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from paceline.calibrate.logs import FittedLog, fit_log, system_that_fits
from paceline.cli import calibrate as command
from paceline.predict.against import Comparison
from paceline.predict.logged import read_log

HERE = Path(__file__).parent
SAMPLE = HERE / "megatron-a100-sample.csv"
PLACES = (HERE.parents[1] / "shared", HERE.parents[2] / "shared", HERE.parents[3] / "shared")
# 512 GPUs with tensor=4,pipeline=8 in micro-batches of 3.
CONTRADICTION = "row 305"
LARGE = next((place / "data/measured/megatron-a100.csv" for place in PLACES if place.is_dir()), Path("absent"))


def fitted(path: Path, seed: int) -> FittedLog:
    runs = read_log(path).runs
    described = system_that_fits(runs, path.stem)
    return fit_log(runs, described, source=path.name, hold_out=0.5, seed=seed, attention="unfused")


@dataclass(frozen=True)
class CommandedFit:
    """What `paceline calibrate --from` printed, the folder that it wrote to, and the fit that it made."""

    printed: str
    folder: Path
    fit: FittedLog


@pytest.fixture(scope="module")
def commanded(tmp_path_factory: pytest.TempPathFactory) -> CommandedFit:
    """The command, run once for all tests: a fit takes seconds."""
    folder, fits = tmp_path_factory.mktemp("fitted"), []

    def keep(*arguments: Any, **named: Any) -> FittedLog:
        fits.append(fit_log(*arguments, **named))
        return fits[-1]

    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as printed:
        patch.chdir(folder)
        patch.setattr(command, "fit_log", keep)
        command.calibrate(log=SAMPLE, hold_out=0.5, attention="unfused", out=Path("a100.toml"))
    (fit,) = fits
    return CommandedFit(printed.getvalue(), folder, fit)


@pytest.fixture(scope="module")
def held_out(commanded: CommandedFit) -> Comparison:
    found = commanded.fit.held_out
    assert found is not None and len(found.rows) == 36
    return found


def test_half_of_a_few_runs_predicts_the_other_half(held_out: Comparison) -> None:
    assert held_out.by_nodes["one node"].mean_error <= 0.11
    assert held_out.by_nodes["several nodes"].mean_error <= 0.15
    assert 0.75 <= held_out.total.coverage <= 1.0


def test_a_choice_by_prediction_is_better_than_always_data_parallel(held_out: Comparison) -> None:
    assert held_out.rank_correlation is not None and held_out.rank_correlation > 0.8
    assert held_out.loss_of_predicted is not None and held_out.loss_of_data_parallel is not None
    assert held_out.loss_of_predicted.mean_loss <= held_out.loss_of_data_parallel.mean_loss


@pytest.mark.skipif(not LARGE.is_file(), reason="the larger file is not here")
def test_half_of_many_runs_predicts_the_other_half_within_a_tenth() -> None:
    held_out = fitted(LARGE, seed=0).held_out
    assert held_out is not None
    assert held_out.by_nodes["one node"].mean_error <= 0.05
    assert held_out.by_nodes["several nodes"].mean_error <= 0.10
    assert 0.80 <= held_out.total.coverage <= 0.97
    losses = held_out.loss_of_predicted, held_out.loss_of_data_parallel
    assert losses[0] is not None and losses[1] is not None
    assert losses[0].mean_loss <= 0.03 < losses[1].mean_loss
    # One run contradicts those like it (docs/logs.md).
    plain = Comparison(tuple(row for row in held_out.rows if row.run.name != CONTRADICTION), {}).loss_of_predicted
    assert plain is not None and plain.worst_loss <= 0.15


def paceline(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "paceline", *words], cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "COLUMNS": "160"},
    )  # fmt: skip


def test_the_commands_write_a_system_and_hold_rows_against_it(commanded: CommandedFit) -> None:
    assert "held out" in commanded.printed and "several nodes" in commanded.printed
    # The last row is wrong: it has too many GPUs for its layout.
    rows = SAMPLE.read_text() + "single-node,64,2,1,1024,16,16,1024,1,1,4,76\n"
    (commanded.folder / "rows.csv").write_text(rows)
    against = ["validate", "--system", "a100.toml", "--against", "rows.csv"]
    values = json.loads(paceline(commanded.folder, *against, "--json").stdout)
    assert values["total"]["runs"] == 72 == len(values["rows"])
    assert values["total"]["mean_error"] <= 0.12
    assert list(values["refused"]) == ["row 74"] and "gpus says 64" in values["refused"]["row 74"]
    assert set(values["by_source"]) == {"single-node", "multi-node"}
    text = paceline(commanded.folder, *against).stdout
    assert "rank correlation" in text and "left out row 74" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--hold-out", "1.5"], "--hold-out 1.5 is no share of the runs"),
        (["--attention", "flash"], "--attention 'flash' is unknown"),
        (["--assume", "recompute"], "--assume 'recompute' is not understood"),
        (["--system", "a300"], "there is no system 'a300'"),
    ],
)
def test_wrong_options_are_refused(tmp_path: Path, options: list[str], message: str) -> None:
    refused = paceline(tmp_path, "calibrate", "--from", str(SAMPLE), *options)
    assert refused.returncode == 2
    assert message in " ".join(refused.stderr.split())
