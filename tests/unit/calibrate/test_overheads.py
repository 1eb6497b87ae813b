"""What strategies' own software costs, told apart from computing and sending."""

from collections.abc import Callable, ItemsView
from dataclasses import replace

import pytest

from paceline.calibrate.overheads import fitted, strategy_overheads
from paceline.calibrate.trials import (
    LONGEST_STEP_SECONDS,
    TRIALS,
    WORKLOAD_STEPS,
    TrialModel,
    run_trials,
    run_workload,
    timed_strategies,
)
from paceline.contract.context import spec_facts
from paceline.plan import complete
from paceline.predict.compute import model_digest
from paceline.predict.prediction import Predictor
from paceline.predict.question import data_bytes
from paceline.record import Epoch, Finding, Memory, Rank, Record
from paceline.spec import RunSpec, Scalar
from paceline.strategies import strategies, strategy
from paceline.systems.files import load_hardware
from paceline.systems.hardware import Calibration, Hardware, Quantity, StrategyOverhead
from paceline.systems.local import System
from paceline.workloads import workload

TRUE = {
    "seconds_per_message": 2e-3, "seconds_per_parameter_byte": 3e-9, "waiting_per_message": 5e-4,
    "waiting_per_long_message": 1e-3,
}  # fmt: skip
STEPS, BATCH = 10, 160
HELD, HELD_PER_BYTE = 3e6, 1.5


def hardware(*overheads: StrategyOverhead) -> Hardware:
    """The described machine with two cores, as if it had been calibrated."""
    calibration = Calibration(at="2020-01-01", machine="a machine", frameworks={"torch": "2"}, overheads=overheads)
    # A core that moves bytes computes next to nothing meanwhile, so that what is waited for is not hidden.
    interference = Quantity(value=32.0, source="made up for a test")
    fields = {"calibration": calibration, "node_devices": 2, "interference": interference}
    return load_hardware("cpu-2-cores").model_copy(update=fields)


def options(spec: RunSpec) -> ItemsView[str, Scalar]:
    """With those that are as they always are, which a spec does not keep."""
    return {**workload(spec.workload).options, **spec.options}.items()


def kept(spec: RunSpec) -> float:
    """Beyond the prediction: a third of what the passes take, on one worker too, and what is the strategy's own."""
    facts = spec_facts(spec)
    worker = strategy(spec.strategy).footprint(spec, facts).groups[0]
    own = HELD + HELD_PER_BYTE * facts.parameter_bytes if spec.workers > 1 else 0.0
    return (worker.gradient_bytes + worker.activation_bytes) / 3 + own


@pytest.fixture
def system(make_system: Callable[..., System]) -> System:
    """Two cores and a PyTorch that has every strategy."""
    return replace(make_system(), frameworks={"torch": "2.13.0"})


@pytest.fixture
def run(make_record: Callable[..., Record]) -> Callable[[RunSpec, int], Record]:
    """Runs that take what is predicted for strategies with the true costs; a try before the last is disturbed."""

    def made(spec: RunSpec, turn: int) -> Record:
        known = hardware(StrategyOverhead.model_validate({"strategy": spec.strategy, "held_bytes": 0.0, **TRUE}))
        predicted = Predictor(known, spec_facts(spec), 1, data_bytes=data_bytes(spec)).predict(spec)
        parts, held = predicted.parts, round(predicted.memory_bytes.value + kept(spec))
        tries = [one.tries for one in TRIALS if one.workload == spec.workload and one.options.items() <= options(spec)]
        disturbed = turn < max(tries, default=1) - 1
        slower = 2.0 if disturbed else 1.0
        epoch = Epoch(number=0, seconds=parts.step * STEPS * slower, steps=STEPS, samples=640, train_loss=1.0,
                      cpu_seconds=parts.cpu_seconds * STEPS * slower)  # fmt: skip
        found = (Finding(code="other_load", text="busy", hint="wait"),) if disturbed else ()
        rank = Rank(rank=0, role="worker", cores=(0,), cpu_seconds=1.0, peak_memory_bytes=1,
                    memory=Memory(baseline_bytes=0, steady_bytes=1, peak_bytes=held, final_bytes=1))  # fmt: skip
        return make_record(spec=spec, epochs=(epoch,), findings=found, ranks=(rank,))

    return made


def trials(run: Callable[[RunSpec, int], Record], system: System) -> list[TrialModel]:
    return run_trials(system, run, lambda _text: None)


def test_strategies_whose_software_is_timed_are_of_each_kind() -> None:
    families = {strategies()[name].family for name in timed_strategies()}
    assert families == {"data", "model", "server"}


def test_a_strategy_is_calibrated_like_one_that_is_timed() -> None:
    for chosen in strategies().values():
        assert set(chosen.traits.calibrated_like) <= set(timed_strategies()) - {chosen.name}


def test_software_that_does_more_at_every_operation_is_timed_with_attention_too() -> None:
    assert set(timed_strategies("transformer")) < set(timed_strategies("mlp")) == set(timed_strategies())


def test_two_costs_from_sums_of_them_and_neither_below_zero() -> None:
    assert fitted([(2.0, 1.0, 2 * 3 + 5, 50.0), (2.0, 10.0, 2 * 3 + 50, 100.0)]) == pytest.approx((3.0, 5.0))
    assert fitted([(2.0, 1.0, 10.0, 10.0), (2.0, 10.0, 4.0, 1e3)]) == pytest.approx((5.0, 0.0), rel=1e-3)
    assert fitted([(2.0, 1.0, -1.0, 10.0), (2.0, 10.0, 40.0, 10.0)]) == pytest.approx((0.0, 4.0), rel=0.02)
    assert fitted([(0.0, 1.0, 2.0, 1.0), (0.0, 10.0, 20.0, 1.0)]) == pytest.approx((0.0, 2.0))


def test_a_third_sum_that_does_not_fit_moves_costs_by_its_share_of_the_step() -> None:
    exact = [(2.0, 1.0, 11.0, 50.0), (2.0, 10.0, 56.0, 100.0)]
    near, far = (fitted([*exact, (20.0, 10.0, 130.0, step)])[0] for step in (10.0, 1e4))
    assert far == pytest.approx(3.0, rel=1e-3)
    assert near > 3.5


def test_the_costs_of_runs_are_found_again(run: Callable[[RunSpec, int], Record], system: System) -> None:
    found = {one.strategy: one for one in strategy_overheads(hardware(), trials(run, system))}
    assert set(found) == set(timed_strategies())
    for one in found.values():
        assert one.seconds_per_message == pytest.approx(TRUE["seconds_per_message"], rel=1e-3), one.strategy
        assert one.seconds_per_parameter_byte == pytest.approx(TRUE["seconds_per_parameter_byte"], rel=1e-3)
        assert one.waiting_per_message == pytest.approx(TRUE["waiting_per_message"], rel=0.1), one.strategy
        # Stages of the small models send no message that is long.
        long = 0.0 if one.strategy == "torch-pipeline" else TRUE["waiting_per_long_message"]
        assert one.waiting_per_long_message == pytest.approx(long, rel=0.1), one.strategy
        assert one.held_bytes == pytest.approx(HELD, rel=0.05), one.strategy
        assert one.held_per_parameter_byte == pytest.approx(HELD_PER_BYTE, rel=0.05), one.strategy


@pytest.mark.parametrize("cores", [3, 6, 12])
def test_any_number_of_cores_has_strategies_that_divide_the_models_over_them(
    run: Callable[[RunSpec, int], Record], system: System, cores: int
) -> None:
    many = replace(system, cores=tuple(range(cores)))
    found = {one.strategy for one in strategy_overheads(hardware(), trials(run, many))}
    assert {"torch-ddp", "torch-zero"} <= found <= set(timed_strategies())


def test_a_disturbed_run_is_made_again(run: Callable[[RunSpec, int], Record], system: System) -> None:
    turns: list[int] = []

    def counted(spec: RunSpec, turn: int) -> Record:
        turns.append(turn)
        return run(spec, turn)

    trials(counted, system)
    runs = [1 + len(timed_strategies(trial.workload)) for trial in TRIALS]
    assert turns == [turn for trial, times in zip(TRIALS, runs, strict=True) for turn in [*range(trial.tries)] * times]
    assert max(turns) > 0


def test_on_one_core_models_are_run_by_one_worker_alone(run: Callable[[RunSpec, int], Record], system: System) -> None:
    found = trials(run, replace(system, cores=(0,)))
    assert [one.alone.spec.workload for one in found] == [trial.workload for trial in TRIALS]
    assert not any(one.by_strategies for one in found)
    assert strategy_overheads(hardware(), found) == ()


def run_small_cnn(
    run: Callable[[RunSpec, int], Record], system: System, step_seconds: float = 0.01
) -> TrialModel | None:
    base = complete(RunSpec(workload="mnist-small", global_batch=64, steps=1))
    return run_workload(base, spec_facts(base), BATCH, step_seconds, system, run, lambda _text: None)


def test_what_strategies_hold_of_the_model_itself_is_kept_for_it(
    run: Callable[[RunSpec, int], Record], system: System
) -> None:
    mine = run_small_cnn(run, system)
    assert mine is not None
    assert {run.spec.global_batch for run in mine.by_strategies.values()} == {BATCH * 2}
    found = strategy_overheads(hardware(), [*trials(run, system), mine])
    assert {one.strategy for one in found} == set(timed_strategies())
    for one in found:
        spec = mine.by_strategies[one.strategy].spec
        (grown,) = one.held_per_activation_byte.values()
        by_size = one.held_bytes + one.held_per_parameter_byte * mine.facts.parameter_bytes
        kept_bytes = strategy(one.strategy).footprint(spec, mine.facts).groups[0].activation_bytes
        assert by_size + grown * kept_bytes == pytest.approx(kept(spec), rel=1e-6)
        assert set(one.held_per_activation_byte) == {model_digest(mine.facts)}
        # Others are told from the small models alone.
        assert one.held_bytes == pytest.approx(HELD, rel=0.05)
        assert one.seconds_per_message == pytest.approx(TRUE["seconds_per_message"], rel=1e-3)


def test_a_strategy_that_runs_the_model_itself_alone_is_known_by_it(
    run: Callable[[RunSpec, int], Record], system: System
) -> None:
    mine = run_small_cnn(run, system)
    assert mine is not None
    for one in strategy_overheads(hardware(), [mine]):
        spec = mine.by_strategies[one.strategy].spec
        (grown,) = one.held_per_activation_byte.values()
        kept_bytes = strategy(one.strategy).footprint(spec, mine.facts).groups[0].activation_bytes
        assert (one.held_bytes, one.held_per_parameter_byte) == (0.0, 0.0)
        assert grown * kept_bytes == pytest.approx(kept(spec), rel=1e-6)


@pytest.mark.parametrize("cores", [4, 64])
def test_many_cores_get_the_data_over_again(run: Callable[[RunSpec, int], Record], system: System, cores: int) -> None:
    mine = run_small_cnn(run, replace(system, cores=tuple(range(cores))))
    assert mine is not None
    spec = mine.by_strategies["torch-ddp"].spec
    assert spec.global_batch == BATCH * cores
    assert spec.train_samples is not None
    assert spec.train_samples <= 5000
    assert spec.train_samples * spec.dataset_copies // spec.global_batch == WORKLOAD_STEPS


def test_a_model_with_long_steps_is_not_run_by_every_strategy(
    run: Callable[[RunSpec, int], Record], system: System
) -> None:
    assert run_small_cnn(run, system, LONGEST_STEP_SECONDS * 1.01) is None
    assert run_small_cnn(run, replace(system, cores=(0,))) is None
