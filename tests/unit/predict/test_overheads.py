"""What strategies' own software costs, told apart from computing and sending."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from paceline.plan import spec_facts
from paceline.predict.overheads import TIMED, TRIES, solved, time_overheads
from paceline.predict.prediction import Predictor
from paceline.predict.question import data_bytes
from paceline.record import Epoch, Finding, Record
from paceline.spec import RunSpec
from paceline.strategies import strategies
from paceline.systems.files import load_hardware
from paceline.systems.hardware import Calibration, Hardware, StrategyOverhead
from paceline.systems.local import System

TRUE = {"seconds_per_message": 2e-3, "seconds_per_parameter_byte": 3e-9, "waiting_per_message": 5e-4}
STEPS = 10


def hardware(*overheads: StrategyOverhead) -> Hardware:
    """The described machine with two cores, as if it had been calibrated."""
    calibration = Calibration(at="2020-01-01", machine="a machine", frameworks={"torch": "2"}, overheads=overheads)
    return load_hardware("cpu-2-cores").model_copy(update={"calibration": calibration, "node_devices": 2})


@pytest.fixture
def system(make_system: Callable[..., System]) -> System:
    """Two cores and a PyTorch that has every strategy."""
    return replace(make_system(), frameworks={"torch": "2.13.0"})


@pytest.fixture
def run(make_record: Callable[..., Record]) -> Callable[[RunSpec, int], Record]:
    """Runs that take what is predicted for strategies with the true costs; a first try is always disturbed."""

    def made(spec: RunSpec, turn: int) -> Record:
        known = hardware(StrategyOverhead.model_validate({"strategy": spec.strategy, "held_bytes": 0.0, **TRUE}))
        parts = Predictor(known, spec_facts(spec), 1, data_bytes=data_bytes(spec)).predict(spec).parts
        slower = 2.0 if turn == 0 else 1.0
        epoch = Epoch(number=0, seconds=parts.step * STEPS * slower, steps=STEPS, samples=640, train_loss=1.0,
                      cpu_seconds=parts.cpu_seconds * STEPS * slower)  # fmt: skip
        found = (Finding(code="other_load", text="busy", hint="wait"),) if turn == 0 else ()
        return make_record(spec=spec, epochs=(epoch,), findings=found)

    return made


def test_strategies_whose_software_is_timed_are_of_each_kind() -> None:
    families = {strategies()[name].family for name in TIMED}
    assert families == {"data", "model", "server"}


def test_two_costs_from_two_sums_and_neither_below_zero() -> None:
    assert solved((2.0, 1.0, 2 * 3 + 5), (2.0, 10.0, 2 * 3 + 50)) == pytest.approx((3.0, 5.0))
    assert solved((2.0, 1.0, 10.0), (2.0, 10.0, 4.0)) == pytest.approx((5.0, 0.0))
    assert solved((2.0, 1.0, 0.0), (2.0, 10.0, 40.0)) == pytest.approx((0.0, 4.0))
    assert solved((0.0, 1.0, 1.0), (0.0, 10.0, 20.0)) == pytest.approx((0.0, 2.0))


def test_the_costs_of_runs_are_found_again(run: Callable[[RunSpec, int], Record], system: System) -> None:
    found = {one.strategy: one for one in time_overheads(hardware(), system, run, lambda _text: None)}
    assert set(found) == set(TIMED)
    for one in found.values():
        assert one.seconds_per_message == pytest.approx(TRUE["seconds_per_message"], rel=1e-3), one.strategy
        assert one.seconds_per_parameter_byte == pytest.approx(TRUE["seconds_per_parameter_byte"], rel=1e-3)
        assert one.waiting_per_message == pytest.approx(TRUE["waiting_per_message"], rel=0.1)


@pytest.mark.parametrize("cores", [3, 6, 12])
def test_any_number_of_cores_has_strategies_that_divide_the_models_over_them(
    run: Callable[[RunSpec, int], Record], system: System, cores: int
) -> None:
    many = replace(system, cores=tuple(range(cores)))
    found = {one.strategy for one in time_overheads(hardware(), many, run, lambda _text: None)}
    assert {"torch-ddp", "torch-zero"} <= found <= set(TIMED)


def test_a_disturbed_run_is_made_again(run: Callable[[RunSpec, int], Record], system: System) -> None:
    turns: list[int] = []

    def counted(spec: RunSpec, turn: int) -> Record:
        turns.append(turn)
        return run(spec, turn)

    time_overheads(hardware(), system, counted, lambda _text: None)
    assert turns == list(range(TRIES)) * (len(turns) // TRIES)
