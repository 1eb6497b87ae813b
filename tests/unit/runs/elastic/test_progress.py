"""Progress files: what a killed worker noted is read, half a line is not."""

import os
from pathlib import Path

import pytest

from paceline.contract.job import Share
from paceline.runs.elastic.progress import Claim, LostClaimError, ProgressNotes, ProgressReader, first_step
from paceline.runs.folder import RunFolder

SHARE = Share(part=1, samples=32, workers=(1,))


def test_notes_of_all_workers_are_read_as_they_come(tmp_path: Path) -> None:
    reader, notes = ProgressReader(tmp_path), ProgressNotes(RunFolder(tmp_path), 0)
    assert reader.look() == 0
    notes.add(1, 0.5, SHARE)
    ProgressNotes(RunFolder(tmp_path), 1).add(4, float("nan"), SHARE)
    assert reader.look() == 4
    notes.add(2, 0.25, SHARE)
    assert reader.look() == 4
    progress = reader.progress(launched=0)
    assert [(point.step, point.loss, point.samples, point.trained_by) for point in progress] == [
        (1, 0.5, 32, (1,)), (4, None, 32, (1,)), (2, 0.25, 32, (1,)),
    ]  # fmt: skip


def test_half_a_line_is_left_for_the_next_look(tmp_path: Path) -> None:
    reader = ProgressReader(tmp_path)
    ProgressNotes(RunFolder(tmp_path), 0).add(7, 0.5, SHARE)
    (file,) = tmp_path.glob("progress-*")
    text = file.read_text()
    file.write_text(text + text[:20])
    assert reader.look() == 7
    assert len(reader.notes) == 1
    file.write_text(text + text.replace('"step":7', '"step":8'))
    assert reader.look() == 8


def test_a_group_that_takes_over_a_run_stops_the_one_before(tmp_path: Path) -> None:
    first = Claim(RunFolder(tmp_path))
    first.check()
    RunFolder(tmp_path).publish("claim", 0, "another process")
    with pytest.raises(LostClaimError, match="another group of workers has begun to train this run"):
        first.check()
    again = Claim(RunFolder(tmp_path))
    again.check()


def test_a_worker_in_anothers_place_begins_where_the_others_are(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    ProgressNotes(folder, 0).add(30, 0.5, SHARE)
    assert first_step(folder, 1) == 0
    (tmp_path / f"progress-1-{os.getpid()}.jsonl").touch()
    assert first_step(folder, 1) == 30
