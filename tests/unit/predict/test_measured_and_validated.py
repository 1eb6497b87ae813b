"""What records say of a step, predictions held against it, and the word before extrapolating."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.contract.context import spec_facts
from paceline.plan import complete
from paceline.predict.compute import model_digest
from paceline.predict.measured import measured_step, peak_above_framework
from paceline.predict.question import Question
from paceline.predict.self_check import self_check
from paceline.predict.validate import summarise, validate_records
from paceline.record import Epoch, Finding, Memory, Rank, Record, Status
from paceline.spec import ModelFile, RunSpec
from paceline.store import Store
from paceline.systems.files import load_hardware
from paceline.systems.hardware import Calibration, Curve, Hardware, StepCurve
from paceline.systems.local import local_system

BUSY = Finding(code="other_load", text="other programs used the machine", hint="close them")


def epochs(*seconds: float) -> tuple[Epoch, ...]:
    return tuple(
        Epoch(number=number, seconds=one, steps=10, samples=640, cpu_seconds=one / 2, train_loss=1.0)
        for number, one in enumerate(seconds)
    )


@pytest.fixture
def one_worker(make_record: Callable[..., Record]) -> Callable[..., Record]:
    """A run of the small CNN on one worker of this machine."""

    def make(*seconds: float, **fields: Any) -> Record:
        spec = complete(RunSpec(strategy="torch-single", global_batch=64, epochs=len(seconds)))
        return make_record(spec=spec, epochs=epochs(*seconds), environment={"cpu": local_system().cpu}, **fields)

    return make


@pytest.fixture
def calibrated() -> Hardware:
    """A machine on which a step of 64 samples takes a tenth of a second."""
    spec = complete(RunSpec(strategy="torch-single", global_batch=64, steps=1))
    curve = StepCurve(framework="torch", model="mnist-small", digest=model_digest(spec_facts(spec)), precision="fp32",
                      seconds=Curve.through([16.0, 64.0, 256.0], [0.025, 0.1, 0.4]))  # fmt: skip
    found = Calibration(at="2020-01-01", machine=local_system().cpu, frameworks={}, steps=(curve,),
                        repeat_deviation=0.02)  # fmt: skip
    return load_hardware("cpu-2-cores").model_copy(update={"calibration": found, "name": "local"})


def test_the_least_disturbed_third_of_the_later_epochs_counts(one_worker: Callable[..., Record]) -> None:
    step = measured_step(one_worker(9.0, 1.0, 3.0, 2.0))
    assert step is not None
    assert (step.wall_seconds, step.cpu_seconds, step.disturbed) == pytest.approx((0.1, 0.05, False))


def test_a_run_that_failed_has_no_step(one_worker: Callable[..., Record]) -> None:
    assert measured_step(one_worker(1.0, status=Status.FAILED)) is None


def test_cpu_seconds_of_serving_processes_are_shared_out_over_steps(one_worker: Callable[..., Record]) -> None:
    server = Rank(rank=1, role="server", cores=(0,), cpu_seconds=5.0, peak_memory_bytes=1,
                  details={"serving_cpu_seconds": 4.0})  # fmt: skip
    step = measured_step(one_worker(1.0, 1.0, ranks=(server,)))
    assert step is not None
    assert step.cpu_seconds == pytest.approx(0.05 + 4.0 / 20)


def test_peak_memory_is_that_of_the_process_that_held_most(one_worker: Callable[..., Record]) -> None:
    ranks = tuple(
        Rank(rank=number, role="worker", cores=(0,), cpu_seconds=1.0, peak_memory_bytes=1,
             memory=Memory(baseline_bytes=100, steady_bytes=150, peak_bytes=peak, final_bytes=150))
        for number, peak in enumerate((160, 190))
    )  # fmt: skip
    assert peak_above_framework(one_worker(1.0, ranks=ranks)) == 90
    assert peak_above_framework(one_worker(1.0)) is None


def test_a_row_compares_by_wall_clock_unless_every_run_was_disturbed(
    one_worker: Callable[..., Record], calibrated: Hardware
) -> None:
    (calm,) = validate_records([one_worker(1.0, 1.0)], calibrated).rows
    (disturbed,) = validate_records([one_worker(1.0, 1.0, findings=(BUSY,))], calibrated).rows
    assert (calm.basis, disturbed.basis) == ("wall", "CPU")
    assert calm.error == pytest.approx(0, abs=1e-9) and calm.inside
    assert disturbed.error == pytest.approx(1, abs=1e-9) and not disturbed.inside


def test_only_runs_of_the_machine_that_was_calibrated_are_compared(
    one_worker: Callable[..., Record], calibrated: Hardware
) -> None:
    elsewhere = one_worker(1.0, 1.0).model_copy(update={"environment": {"cpu": "another processor"}})
    assert validate_records([elsewhere], calibrated).rows == []
    unmeasured = calibrated.model_copy(update={"calibration": None})
    assert validate_records([one_worker(1.0, 1.0)], unmeasured).rows == []


def test_the_summary_has_mean_worst_and_coverage(one_worker: Callable[..., Record], calibrated: Hardware) -> None:
    larger = one_worker(1.0, 1.0)
    larger = larger.model_copy(update={"spec": larger.spec.model_copy(update={"global_batch": 256})})
    total = summarise(validate_records([one_worker(1.0, 1.0), larger], calibrated).rows)
    assert total.rows == 2
    assert total.worst_error == pytest.approx(3, rel=1e-6)
    assert total.mean_error == pytest.approx(1.5, rel=1e-6)
    assert total.coverage == 0.5
    assert total.order_kept is None


def stored(path: Path, *records: Record) -> Path:
    with Store.open(path) as store:
        for record in records:
            store.add(record)
    return path


def test_a_prediction_that_is_off_here_is_said_before_extrapolating(
    one_worker: Callable[..., Record], calibrated: Hardware, tmp_path: Path
) -> None:
    question = Question(hardware=calibrated)
    assert self_check(question, tmp_path / "absent.db") is None
    assert self_check(question, stored(tmp_path / "right.db", one_worker(1.0, 1.0))) is None
    said = self_check(question, stored(tmp_path / "wrong.db", one_worker(0.5, 0.5)))
    assert said is not None
    assert "is predicted 100% longer than it was measured; calibrate again" in said


def test_one_disturbed_run_of_several_is_no_reason_for_doubt(
    one_worker: Callable[..., Record], calibrated: Hardware, tmp_path: Path
) -> None:
    question = Question(hardware=calibrated)
    runs = [one_worker(seconds, seconds).model_copy(update={"repeat": turn}) for turn, seconds in enumerate((1, 2, 1))]
    assert self_check(question, stored(tmp_path / "once.db", *runs)) is None
    runs[0] = one_worker(2.0, 2.0)
    said = self_check(question, stored(tmp_path / "twice.db", *runs))
    assert said is not None
    assert "is predicted 50% shorter" in said


def test_what_another_machine_measured_says_nothing_here(
    one_worker: Callable[..., Record], calibrated: Hardware, tmp_path: Path
) -> None:
    assert calibrated.calibration is not None
    other = calibrated.calibration.model_copy(update={"machine": "another processor"})
    question = Question(hardware=calibrated.model_copy(update={"calibration": other}))
    assert self_check(question, stored(tmp_path / "runs.db", one_worker(0.5, 0.5))) is None


OWN_WAY = """
from torch import nn

class OwnWay(nn.Module):
    def __init__(self):
        super().__init__()
        self.core = nn.LSTM(32, 64, batch_first=True)
        self.head = nn.Linear(64, 10)

    def forward(self, numbers):
        return self.head(self.core(numbers)[0][:, -1])

def build():
    return OwnWay()
"""


@pytest.mark.torch
def test_a_model_of_the_users_is_validated_as_it_is_predicted(
    make_record: Callable[..., Record], tmp_path: Path
) -> None:
    path = tmp_path / "own_way.py"
    path.write_text(OWN_WAY)
    fields = {"model": ModelFile.from_text(str(path)), "dataset": "synthetic", "input_shape": (50, 32), "classes": 10}
    hardware = load_hardware("h200-nvlink")
    assert hardware.calibration is not None
    spec = complete(
        RunSpec(strategy="torch-single", device="cuda", precision="bf16", global_batch=64, epochs=1, **fields)
    )
    record = make_record(spec=spec, epochs=epochs(1.0), environment={"cpu": hardware.calibration.machine})
    asked = Question(hardware, **fields, precision="bf16", global_batches=(64,), strategies=("torch-single",))
    (row,) = validate_records([record], hardware).rows
    assert row.predicted.value == pytest.approx(asked.predictor.predict(spec).step_seconds.value)


@pytest.mark.torch
def test_what_cannot_be_predicted_is_named_with_its_reason(make_record: Callable[..., Record], tmp_path: Path) -> None:
    path = tmp_path / "gone.py"
    path.write_text("import a_library_that_is_not_here\n\ndef build():\n    return None\n")
    hardware = load_hardware("h200-nvlink")
    assert hardware.calibration is not None
    spec = RunSpec(
        strategy="torch-single", device="cuda", workload="gone.py:build", model=ModelFile.from_text(str(path)),
        dataset="mnist-5k", global_batch=64, epochs=1,
    )  # fmt: skip
    record = make_record(spec=spec, epochs=epochs(1.0), environment={"cpu": hardware.calibration.machine})
    found = validate_records([record], hardware)
    assert found.rows == []
    ((name, reason),) = found.left_out.items()
    assert name == "gone.py:build torch-single" and "a_library_that_is_not_here" in reason
