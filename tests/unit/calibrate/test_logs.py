"""Numbers fitted to logged runs: those that made the runs are found again, and what runs say nothing of stays."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.calibrate.log_fit import block_of
from paceline.calibrate.log_numbers import FITTED
from paceline.calibrate.logs import fit_log, system_that_fits
from paceline.costs.footprint import Block
from paceline.errors import SpecError
from paceline.predict.against import compare
from paceline.predict.logged import LoggedRun, read_log
from paceline.strategies import strategy
from paceline.systems.files import load_hardware
from paceline.systems.hardware import Hardware
from paceline.systems.software import Software

COLUMNS = "gpus,global_batch,micro_batch,width,heads,depth,sequence,tensor,data,pipeline,step_seconds\n"
A100 = load_hardware("a100-nvlink")


def logged(folder: Path) -> list[LoggedRun]:
    """Runs of every kind of layout of 8 GPUs with small and large passes; their seconds are made up."""
    rows = [
        f"8,{data * micro * 4},{micro},{width},16,8,1024,{tensor},{data},{pipeline},1.0"
        for tensor, data, pipeline in ((1, 8, 1), (8, 1, 1), (2, 4, 1), (1, 4, 2), (2, 2, 2), (4, 1, 2))
        for micro in (1, 4)
        for width in (1024, 4096)
    ]
    path = folder / "runs.csv"
    path.write_text(COLUMNS + "\n".join(rows))
    return list(read_log(path).runs)


def block(run: LoggedRun) -> Block:
    """The block that ranks of a run have."""
    common = block_of(strategy(run.spec.strategy).footprint(run.spec, run.model))
    assert common is not None
    return common


def made_by(hardware: Hardware, runs: list[LoggedRun]) -> list[LoggedRun]:
    """Runs that take as long as is predicted for a system."""
    return [replace(row.run, step_seconds=row.predicted.value) for row in compare(runs, hardware).rows]


def with_numbers(**values: float) -> Hardware:
    hardware = A100.model_copy(update={"software": Software(source="made up for a test", attention="unfused")})
    for number in FITTED:
        hardware = number.place(hardware, values.get(number.name, number.start(A100)), "made up for a test")
    return hardware


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Any:
    truth = with_numbers(product_efficiency=0.5, host_seconds_per_operation=6e-5, memory_efficiency=0.5)
    runs = made_by(truth, logged(tmp_path_factory.mktemp("log")))
    return fit_log(runs, A100, source="runs.csv", attention="unfused"), runs


def test_runs_that_a_fit_has_not_seen_are_predicted_as_they_were_made(fitted: Any) -> None:
    fit, runs = fitted
    assert compare(runs, fit.hardware).total.mean_error < 0.02
    assert fit.cross_validated.total.mean_error < 0.05


def test_numbers_that_runs_depend_on_are_found_and_others_stay(fitted: Any) -> None:
    fit, _ = fitted
    assert fit.numbers["product_efficiency"] == pytest.approx(0.5, rel=0.1)
    assert fit.numbers["host_seconds_per_operation"] == pytest.approx(6e-5, rel=0.1)
    # All runs are within a node.
    assert fit.numbers["outer.bytes_per_second"] == pytest.approx(A100.outer.bytes_per_second.value, rel=1e-3)


def test_the_system_says_what_it_was_fitted_to(fitted: Any) -> None:
    fit, runs = fitted
    software = fit.hardware.software
    assert f"fitted to {len(runs)} runs of runs.csv" in software.source
    assert "by cross-validation" in software.source
    assert fit.hardware.device.product_efficiency.source == "fitted to 24 runs of runs.csv, see software"
    assert software.deviation == software.several_nodes_deviation > 0


def test_a_block_that_takes_longer_than_its_numbers_say_is_learned_from_runs_that_have_it(fitted: Any) -> None:
    _, runs = fitted
    slow = [run for run in runs if block(run).tensor == 1 and block(run).width == 4096 and run.microbatch == 4]
    slower = [replace(run, step_seconds=1.4 * run.step_seconds) for run in slow * 2]
    assert len({block(run) for run in slow}) == 1 < len(slow)
    others = [run for run in runs if run not in slow]
    fit = fit_log([*others, *slower], A100, source="runs.csv", attention="unfused")
    assert fit.hardware.software is not None
    assert fit.hardware.software.block_factors[block(slow[0])] > 1.1
    assert compare(slower, fit.hardware).total.mean_error < 0.05
    assert compare(others, fit.hardware).total.mean_error < 0.05


def test_blocks_that_no_run_had_are_predicted_with_less_certainty(fitted: Any) -> None:
    fit, runs = fitted
    software = fit.hardware.software
    unsure = fit.hardware.model_copy(
        update={"software": software.model_copy(update={"other_blocks_deviation": 10 * software.deviation})}
    )
    known, other = runs[0], replace(runs[0], spec=runs[0].spec.model_copy(update={"accumulation": 2}))
    widths = [row.predicted.high / row.predicted.value - 1 for row in compare([known, other], unsure).rows]
    assert widths[1] > 5 * widths[0]


def test_over_several_nodes_an_unknown_block_adds_to_what_the_network_leaves_open() -> None:
    software = Software(
        source="made up for a test", deviation=0.03, several_nodes_deviation=0.04, other_blocks_deviation=0.05
    )
    assert software.deviation_of(1, logged=True) == 0.03
    assert software.deviation_of(1, logged=False) == 0.05
    assert software.deviation_of(2, logged=True) == 0.04
    assert software.deviation_of(2, logged=False) == pytest.approx((0.04**2 + 0.05**2 - 0.03**2) ** 0.5)


def test_a_share_of_the_runs_is_kept_out_and_predicted(fitted: Any) -> None:
    _, runs = fitted
    doubled = [replace(run, name=f"{run.name} again") for run in runs] + runs
    fit = fit_log(doubled, A100, source="runs.csv", attention="unfused", hold_out=0.5, seed=3)
    assert fit.held_out is not None and len(fit.held_out.rows) == len(runs) == len(fit.cross_validated.rows)
    assert "24 kept out (seed 3)" in fit.hardware.software.source if fit.hardware.software else False


def test_too_few_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"5 runs of runs.csv can be fitted and 12 numbers want at least 20"):
        fit_log(logged(tmp_path)[:5], A100, source="runs.csv")


def test_the_slowest_system_that_can_have_made_all_runs_is_described(tmp_path: Path) -> None:
    runs = made_by(with_numbers(product_efficiency=0.9), logged(tmp_path))
    assert system_that_fits(runs).name == "a100-nvlink"
    assert system_that_fits(runs, "Runs-of-H100s").name == "h100-nvlink"
    with pytest.raises(SpecError, match="more than any described system can"):
        system_that_fits([replace(run, step_seconds=1e-6) for run in runs])
