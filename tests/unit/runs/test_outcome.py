"""From what the processes left to the record: how the run ended and why."""

import math
import signal

import pytest

from paceline.contract.context import Place, Process
from paceline.contract.job import Evaluation
from paceline.plan import PlannedRun
from paceline.record import Energy, Finding, Memory, Status
from paceline.runs.meters.energy import EnergyMeter
from paceline.runs.meters.memory import Resident
from paceline.runs.outcome import Ending, classify, make_record
from paceline.runs.surroundings import Surroundings
from paceline.runs.wire import EpochResult, Measurements, ProcessStart, RankError, RankResult

SECOND = 1_000_000_000
TWO = tuple(Process(rank, 2, "worker", rank, (rank,)) for rank in range(2))
GOOD = RankResult(start=ProcessStart(started=0, imported=0, opened=0), measured=Measurements())


def failure(kind="failed", failed_at=1, text="out of luck", name="RuntimeError"):
    return RankError(kind=kind, type=name, text=text, failed_at=failed_at)


def verdict(codes, reports=(None, None), **fields):
    return classify(Ending(codes, reports=reports, **fields), TWO)


def epoch(start=10.0, steps=(1.0, 1.0), wait=0.5, losses=(2.0, 1.0), evaluation=None, resident=None):
    """One process's view of an epoch that began at second `start`."""
    stamps = [round(start * SECOND)]
    for seconds in steps:
        stamps.append(stamps[-1] + round(seconds * SECOND))
    return EpochResult(
        epoch=0,
        stamps=stamps,
        ended=stamps[-1] + round(wait * SECOND),
        cpu_seconds=1.5,
        losses=list(losses) if losses is not None else None,
        evaluation=evaluation,
        resident=resident,
    )


def part(*epochs, opened=9.0, baseline_bytes=None, run_queue_share=None, **measured):
    """What one process left; it was launched at second 5."""
    return RankResult(
        start=ProcessStart(
            started=6 * SECOND, imported=8 * SECOND, opened=round(opened * SECOND), baseline_bytes=baseline_bytes
        ),
        measured=Measurements(
            epochs=list(epochs), cpu_seconds=4.0, peak_memory_bytes=1000, details={"threads": 1}, **measured
        ),
        run_queue_share=run_queue_share,
    )


@pytest.fixture
def record_of(make_spec):
    """The record of a run that left these parts."""

    def make(*reports, codes=None, **fields):
        ending = Ending(
            codes or [0] * len(reports), reports=reports, log_tails=["first log", "second log"][: len(reports)]
        )
        return make_record(
            PlannedRun(make_spec(workers=len(reports)), repeat=3),
            "trial",
            TWO[: len(reports)],
            ending,
            Surroundings(
                started_at="2024-05-01T12:00:00.000+00:00", launched=5 * SECOND, wall_seconds=20.0,
                environment={"cpu": "a processor"}, **fields,
            ),
        )  # fmt: skip

    return make


def test_a_run_whose_processes_all_left_a_result_is_ok():
    assert verdict([0, 0], [GOOD, GOOD]) == (Status.OK, None, 0)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM])
def test_a_process_killed_by_a_signal_is_a_failure_that_names_signal_rank_and_role(number):
    status, reason, culprit = verdict([0, -number])
    assert (status, culprit) == (Status.FAILED, 1)
    assert reason == f"rank 1 (worker) was killed by {number.name}"


def test_a_signal_explains_more_than_the_errors_it_causes():
    assert verdict([1, -signal.SIGKILL], [failure(), None])[1] == "rank 1 (worker) was killed by SIGKILL"


def test_a_signal_without_a_name_is_still_a_reason():
    assert "signal" in verdict([0, -(signal.SIGRTMIN + 1)])[1]


def test_wrong_input_that_only_a_worker_could_see_is_told_in_its_own_words():
    words = "the batch is too large; use a smaller one"
    assert verdict([1, 1], [failure("user_error", text=words, name="UserError"), None]) == (Status.FAILED, words, 0)


def test_wrong_input_of_one_machine_names_it():
    processes = [Process(rank, 2, "worker", rank, (0,), place=Place(rank, f"m{rank}")) for rank in range(2)]
    ending = Ending([1, 1], reports=[None, failure("user_error", text="no such file", name="DataError")])
    assert classify(ending, processes) == (Status.FAILED, "on machine m1: no such file", 1)


def test_out_of_memory_is_a_status_of_its_own():
    status, reason, culprit = verdict(
        [0, 1], [GOOD, failure("out_of_memory", text="tried 5 GiB", name="OutOfMemoryError")]
    )
    assert (status, culprit) == (Status.OUT_OF_MEMORY, 1)
    assert reason == "rank 1 (worker): OutOfMemoryError: tried 5 GiB"


def test_an_exception_without_words_is_told_by_its_type():
    assert verdict([1, 0], [failure("out_of_memory", text="", name="MemoryError"), GOOD])[1] == (
        "rank 0 (worker): MemoryError"
    )


def test_any_other_exception_is_a_failure_with_rank_role_type_and_words():
    assert verdict([1, 0], [failure(), GOOD]) == (Status.FAILED, "rank 0 (worker): RuntimeError: out of luck", 0)


def test_of_several_errors_the_first_in_time_is_the_reason():
    parts = [failure(failed_at=200, text="connection reset"), failure(failed_at=100, text="out of luck")]
    assert verdict([1, 1], parts) == (Status.FAILED, "rank 1 (worker): RuntimeError: out of luck", 1)


def test_a_run_past_its_time_says_how_long_it_had():
    status, reason, _ = verdict([None, None], verdict=Status.TIMED_OUT, timeout_seconds=90.0)
    assert status is Status.TIMED_OUT
    assert reason == "did not end within 90 s (timeout_seconds)"


def test_a_run_past_its_time_is_that_whatever_its_processes_left():
    assert verdict([1, None], [failure(), None], verdict=Status.TIMED_OUT, timeout_seconds=1.0)[0] is Status.TIMED_OUT


def test_an_interrupted_run_says_so():
    assert verdict([None, None], verdict=Status.INTERRUPTED)[:2] == (Status.INTERRUPTED, "interrupted by the user")


@pytest.mark.parametrize("code", [0, 3])
def test_a_process_that_ended_without_a_result_is_a_failure_with_its_exit_code(code):
    assert verdict([0, code], [GOOD, None]) == (
        Status.FAILED,
        f"rank 1 (worker) ended with exit code {code} and no result",
        1,
    )


def test_a_process_that_was_still_running_is_not_blamed_for_the_one_that_ended():
    assert verdict([None, 3], [None, None])[1] == "rank 1 (worker) ended with exit code 3 and no result"


def test_the_record_carries_the_run_its_study_and_its_surroundings(record_of, make_spec):
    record = record_of(part(epoch()))
    assert (record.study, record.repeat, record.spec) == ("trial", 3, make_spec())
    assert record.environment == {"cpu": "a processor"}
    assert record.started_at == "2024-05-01T12:00:00.000+00:00"
    assert record.wall_seconds == 20.0


def test_an_epoch_lasts_from_the_first_start_to_the_last_end_over_all_ranks(record_of):
    early = part(epoch(start=10.0, steps=(1.0, 1.0), wait=0.0))
    late = part(epoch(start=10.5, steps=(1.0, 2.0), wait=0.25))
    (only,) = record_of(early, late).epochs
    assert (only.number, only.seconds, only.steps) == (1, 3.75, 2)
    assert only.samples == 2 * 256
    assert only.cpu_seconds == 3.0


def test_losses_are_the_mean_over_the_ranks_that_know_one(record_of):
    record = record_of(part(epoch(losses=(2.0, 1.0))), part(epoch(losses=(4.0, 2.0))))
    assert record.losses == (3.0, 1.5)
    assert record.epochs[0].train_loss == 2.25


def test_a_rank_that_knows_no_loss_is_left_out_of_the_mean(record_of):
    assert record_of(part(epoch(losses=(2.0, 1.0))), part(epoch(losses=None))).losses == (2.0, 1.0)


def test_losses_of_all_epochs_follow_one_another(record_of):
    record = record_of(part(epoch(losses=(4.0, 3.0)), epoch(start=20.0, losses=(2.0, 1.0))))
    assert record.losses == (4.0, 3.0, 2.0, 1.0)
    assert [each.number for each in record.epochs] == [1, 2]


def test_the_parts_of_the_test_set_add_up(record_of):
    parts = [
        part(epoch(evaluation=Evaluation(samples=10, loss_sum=5.0, predictions=10, correct=9))),
        part(epoch(evaluation=Evaluation(samples=30, loss_sum=35.0, predictions=30, correct=21))),
    ]
    (only,) = record_of(*parts).epochs
    assert (only.test_loss, only.test_accuracy) == (1.0, 0.75)


def test_without_a_test_set_there_is_no_test_result(record_of):
    (only,) = record_of(part(epoch())).epochs
    assert (only.test_loss, only.test_accuracy) == (None, None)


def test_where_accuracy_has_no_meaning_there_is_none(record_of):
    test = Evaluation(samples=10, loss_sum=5.0, predictions=None, correct=None)
    (only,) = record_of(part(epoch(evaluation=test))).epochs
    assert (only.test_loss, only.test_accuracy) == (0.5, None)


def test_every_step_of_every_rank_is_kept_over_all_epochs(record_of):
    first = part(epoch(steps=(1.0, 0.5)), epoch(start=20.0, steps=(0.25, 0.125)))
    second = part(epoch(steps=(1.5, 0.5)), epoch(start=20.0, steps=(0.75, 0.125)))
    assert record_of(first, second).step_seconds == {0: (1.0, 0.5, 0.25, 0.125), 1: (1.5, 0.5, 0.75, 0.125)}


def test_start_up_is_that_of_the_slowest_rank(record_of):
    slow = part(epoch(steps=(3.0, 1.0)), opened=9.5)
    startup = record_of(part(epoch(), opened=9.0), slow).startup
    assert startup.launch_seconds == 1.0
    assert startup.import_seconds == 2.0
    assert startup.build_seconds == 1.5
    assert startup.first_step_seconds == 3.0


def test_a_process_that_only_serves_has_no_part_in_epochs_losses_or_start_up(record_of):
    record = record_of(part(opened=99.0), part(epoch(losses=(2.0, 1.0)), opened=9.0))
    assert len(record.epochs) == 1
    assert record.losses == (2.0, 1.0)
    assert record.startup.build_seconds == 1.0
    assert record.step_seconds[0] == ()


def test_each_rank_has_its_role_cores_time_memory_and_details(record_of):
    ranks = record_of(part(epoch()), part(epoch())).ranks
    assert [(rank.rank, rank.role, rank.cores) for rank in ranks] == [(0, "worker", (0,)), (1, "worker", (1,))]
    assert {(rank.cpu_seconds, rank.peak_memory_bytes) for rank in ranks} == {(4.0, 1000)}
    assert ranks[0].details == {"threads": 1}


def test_findings_made_before_are_kept(record_of):
    finding = Finding(code="oversubscribed", text="crowded", hint="wait")
    assert record_of(part(epoch()), findings=[finding]).findings == (finding,)


def test_a_loss_that_is_not_finite_is_a_finding_with_its_step_and_the_run_is_kept(record_of):
    record = record_of(part(epoch(losses=(2.0, math.nan))))
    assert record.status is Status.OK
    assert record.losses == (2.0, None)
    assert record.epochs[0].train_loss is None
    (finding,) = record.findings
    assert finding.code == "loss_not_finite"
    assert finding.text == "the loss is not a finite number from step 2 on"
    assert "lower the learning rate" in finding.hint


def test_a_slow_first_epoch_is_a_finding_with_the_ratio(record_of):
    record = record_of(part(epoch(steps=(2.0, 1.0), wait=0.0), epoch(start=20.0, steps=(1.0, 1.0), wait=0.0)))
    (finding,) = record.findings
    assert finding.code == "slow_first_epoch"
    assert finding.text == "the first epoch took 1.50 times as long as the second"
    assert "compare second epochs" in finding.hint


@pytest.mark.parametrize("second", [(1.0, 1.9), (3.0,)], ids=["about as long", "of other length"])
def test_a_first_epoch_that_cannot_be_called_slow_is_no_finding(record_of, second):
    losses = [1.0] * len(second)
    record = record_of(part(epoch(steps=(1.0, 2.0)), epoch(start=20.0, steps=second, losses=losses)))
    assert record.findings == ()


def test_a_run_that_failed_keeps_the_log_of_the_culprit_and_no_measurements(record_of):
    record = record_of(part(epoch()), failure(), codes=[0, 1])
    assert record.status is Status.FAILED
    assert record.reason == "rank 1 (worker): RuntimeError: out of luck"
    assert record.log_tail == "second log"
    assert (record.epochs, record.startup, record.losses) == ((), None, ())


def test_a_run_that_went_well_keeps_no_log(record_of):
    assert record_of(part(epoch())).log_tail == ""


def test_memory_is_that_of_the_first_epochs_steps_with_the_end_beside_it(record_of):
    epochs = [epoch(resident=Resident(130, 150)), epoch(start=20, resident=Resident(170, 190))]
    record = record_of(part(*epochs, baseline_bytes=100, resident=Resident(180, 200)))
    assert record.ranks[0].memory == Memory(baseline_bytes=100, steady_bytes=130, peak_bytes=150, final_bytes=180)


def test_memory_of_a_process_without_epochs_is_that_in_the_end_and_absent_where_it_was_not_told(record_of):
    server = part(baseline_bytes=100, resident=Resident(180, 200))
    worker, served = record_of(part(epoch()), server).ranks
    assert worker.memory is None
    assert served.memory == Memory(baseline_bytes=100, steady_bytes=180, peak_bytes=200, final_bytes=180)


def test_energy_is_read_from_the_first_start_to_the_last_end_of_an_epoch(record_of):
    meter = EnergyMeter(Energy(source="rapl", idle_watts=5.0), readings=[(0, 0.0), (100 * SECOND, 1000.0)])
    record = record_of(part(epoch(start=10)), part(epoch(start=11)), energy=meter)
    assert record.epochs[0].joules == pytest.approx(10 * 3.5)
    assert record.energy == meter.energy


def test_energy_is_estimated_from_the_cpu_seconds_of_all_processes(record_of):
    meter = EnergyMeter(Energy(source="estimated", watts_per_core=10.0))
    record = record_of(part(epoch()), part(serving_cpu_seconds=0.5), energy=meter)
    assert record.epochs[0].joules == pytest.approx(10 * (1.5 + 0.5))


def test_a_process_that_serves_has_its_cpu_seconds_while_serving_in_the_record(record_of):
    worker, server = record_of(part(epoch()), part(serving_cpu_seconds=0.5)).ranks
    assert "serving_cpu_seconds" not in worker.details
    assert server.details == {"threads": 1, "serving_cpu_seconds": 0.5}


def test_the_longest_wait_for_a_core_is_that_of_the_process_that_waited_most(record_of):
    reports = part(epoch(), run_queue_share=0.25), part(epoch(), run_queue_share=0.5)
    assert Ending([0, 0], reports=reports).longest_run_queue_share == 0.5
    assert Ending([1, 1], reports=[failure(), None]).longest_run_queue_share == 0.0
    assert [rank.details["run_queue_share"] for rank in record_of(*reports).ranks] == [0.25, 0.5]


@pytest.mark.parametrize(
    ("fields", "carried", "codes"),
    [
        ({}, "socket", ["slices_over_sockets"]),
        ({}, "p2p", []),
        ({"transport": "socket"}, "socket", []),
    ],
)
def test_slices_that_talked_over_sockets_without_being_asked_to_are_a_finding(make_spec, fields, carried, codes):
    notes = {"slice_transport": carried, "slice_transport_reason": "NCCL 2.28.9 takes one rank on a GPU"}
    reports = [part(epoch()).model_copy(update={"notes": notes}) for _ in TWO]
    record = make_record(
        PlannedRun(make_spec(workers=2, device="cuda-slice", slices=2, **fields), repeat=0), "trial", TWO,
        Ending([0, 0], reports=reports, log_tails=["", ""]),
        Surroundings(started_at="2024-05-01T12:00:00.000+00:00", launched=0, wall_seconds=20.0, environment={}),
    )  # fmt: skip
    assert [finding.code for finding in record.findings] == codes
    assert all("NCCL 2.28.9" in finding.text for finding in record.findings)
