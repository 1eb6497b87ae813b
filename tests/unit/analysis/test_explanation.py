"""Sentences about a breakdown."""

import pytest

from paceline.analysis.explanation import explain, serial_fraction
from paceline.analysis.rows import summarise
from paceline.breakdown import RankBreakdown
from paceline.record import Loading


def part(rank, **seconds):
    usual = dict.fromkeys(
        ("input", "forward", "backward", "exposed", "waiting", "optimizer", "other", "communication", "overlapped"), 0.0
    )
    return RankBreakdown(rank=rank, steps=20, **{**usual, "sent_bytes": 0.0, **seconds})


def test_the_serial_fraction_is_that_of_karp_and_flatt():
    assert serial_fraction(1.5, 2) == pytest.approx(1 / 3)
    assert serial_fraction(4.0, 4) == 0.0
    assert serial_fraction(1.0, 1) is None


def rows_of(make_record, speed, ranks):
    noted = make_record(speed, workers=2, instrumented=True).model_copy(update={"breakdown": tuple(ranks)})
    return summarise([make_record(1000.0), make_record(speed, workers=2), noted])


def test_why_it_does_not_scale_is_said_with_the_parts_of_the_breakdown(make_record):
    ranks = [part(rank, step=0.1, forward=0.02, backward=0.01, exposed=0.064, waiting=0.006 * (1 - rank),
                  communication=0.064, sent_bytes=57.6e6) for rank in (0, 1)]  # fmt: skip
    rows = rows_of(make_record, 800.0, ranks)
    said = " ".join(explain(rows[1], rows))
    assert "One worker is faster: 2 workers reach 0.80 times its speed." in said
    assert "64 % of the step is exposed communication: 57.6 MB per step at 900 MB/s." in said
    assert "3 % of the step is waiting for slower ranks, mostly for rank 1." in said
    # 67 ms per step against 60 ms of computing for 100 samples, half of which two workers save.
    assert "2 workers pay from a global batch of about 223 on, or with a model that computes 2.2 times as much" in said


def test_the_speed_up_of_an_oversubscribed_machine_is_not_held_against_the_ideal(make_record):
    rows = summarise([make_record(1000.0), make_record(2100.0, workers=2, findings=("oversubscribed",))])
    said = explain(rows[1], rows)[0]
    assert said.startswith("2 workers are 2.10 times as fast as one, oversubscribed (more processes than cores)")
    assert "of ideal" not in said


def test_a_good_speed_up_is_said_with_what_is_left_of_the_ideal(make_record):
    rows = rows_of(make_record, 1600.0, [part(rank, step=0.06, forward=0.02, backward=0.04) for rank in (0, 1)])
    said = " ".join(explain(rows[1], rows))
    assert "2 workers are 1.60 times as fast as one, 80 % of ideal; as if 25 % of the work did not speed up." in said
    assert "Computation is 100 % of a step of 60 ms." in said


def test_without_a_breakdown_it_says_how_to_get_one(make_record):
    rows = summarise([make_record(1000.0), make_record(1500.0, workers=2)])
    assert explain(rows[1], rows)[-1] == "Where the time goes is not known: run it with --breakdown."
    assert explain(rows[0], rows) == []


def waiting(record, wait_seconds):
    """The record of a run that waited so long for its batches, in steps of 14 ms."""
    loading = Loading(processes=0, wait_seconds=wait_seconds, step_seconds=0.014, read_seconds=wait_seconds)
    return record.model_copy(update={"ranks": (record.ranks[0].model_copy(update={"loading": loading}),)})


def test_a_loader_that_sets_the_pace_is_named_also_of_one_worker(make_record):
    alone, two = (make_record(1000.0 * workers, workers=workers, strategy="torch-ddp") for workers in (1, 2))
    rows = summarise([waiting(alone, 0.01), waiting(two, 0.01)])
    words = (
        "Reading data, not the strategy, sets the pace: waiting for the batch takes 71 % of a step (10 ms of 14 ms). "
        "One process reads a batch in 10 ms, so 3 loader processes for each worker would keep up (--loader-workers 3)."
    )
    assert explain(rows[0], rows) == [words]
    assert explain(rows[1], rows)[1] == words


def test_a_loader_that_keeps_up_is_not_worth_a_word(make_record):
    rows = summarise([waiting(make_record(1000.0), 0.0005)])
    assert explain(rows[0], rows) == []


def test_input_is_a_part_of_its_own(make_record):
    ranks = [part(rank, step=0.1, input=0.06, forward=0.02, backward=0.02) for rank in (0, 1)]
    rows = rows_of(make_record, 1600.0, ranks)
    said = " ".join(explain(rows[1], rows))
    assert "Computation is 40 % of a step of 100 ms." in said
    assert "60 % of the step is input: reading the batch and moving it to the device." in said
