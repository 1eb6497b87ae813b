"""What earlier runs tell of reading data, beside a prediction that leaves it out."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from paceline.recommend.reading import Reading, explain_reading, readings_of
from paceline.record import Loading, Rank
from paceline.spec import ModelFile, RunSpec


@pytest.fixture
def model(tmp_path: Path) -> ModelFile:
    (tmp_path / "net.py").write_text("def build(): pass\n")
    return ModelFile.from_text(str(tmp_path / "net.py"))


def record(make_record, model, read_seconds, number, **fields):
    loading = Loading(processes=0, wait_seconds=0.01, step_seconds=0.02, read_seconds=read_seconds)
    rank = Rank(rank=0, role="worker", cores=(0,), cpu_seconds=1.0, peak_memory_bytes=1, loading=loading)
    spec = RunSpec(**{"model": model, "strategy": "torch-ddp", "workers": 2, "global_batch": 64, "epochs": 1, **fields})
    return make_record(spec=spec, ranks=(rank,), id=number)


def prediction(step, **fields):
    spec = RunSpec(**{"strategy": "torch-ddp", "workers": 2, "global_batch": 128, "epochs": 1, **fields})
    return SimpleNamespace(spec=spec, parts=SimpleNamespace(step=step))


def test_runs_of_the_model_tell_what_a_batch_takes_the_newest_first(make_record, model):
    asked_about = RunSpec(model=model, global_batch=8, epochs=1)
    records = [record(make_record, model, 0.02, 3), record(make_record, model, 0.032, 5)]
    # The 32 samples of each of two workers.
    assert readings_of(asked_about, records) == (Reading(0.032, 32, 5), Reading(0.02, 32, 3))


def test_runs_of_other_models_or_without_reading_tell_nothing(make_record, model):
    other = RunSpec(model=model.model_copy(update={"digest": "other"}), global_batch=8, epochs=1)
    assert readings_of(other, [record(make_record, model, 0.02, 3)]) == ()
    asked_about = RunSpec(model=model, global_batch=8, epochs=1)
    assert readings_of(asked_about, [record(make_record, model, None, 3), make_record(id=4)]) == ()


def test_a_loader_that_would_set_the_pace_is_named_with_the_processes_it_takes():
    (said,) = explain_reading([Reading(0.032, 32, 7)], prediction(step=0.02))
    assert said == (
        "Reading data, not the strategy, would set the pace: with one process for each worker, 2,000 samples/s at "
        "most; one process reads a batch in 64 ms, so 4 loader processes for each worker would keep up "
        "(--loader-workers 4) (from run 7; the prediction leaves reading out)."
    )


def test_the_batch_that_is_nearest_in_size_tells_what_reading_costs():
    measured = [Reading(0.012, 8, 9), Reading(0.016, 32, 7), Reading(0.02, 64, 3)]
    (said,) = explain_reading(measured, prediction(step=0.002))
    assert "reads a batch in 20 ms" in said and "from run 3" in said


def test_more_processes_than_a_machine_has_are_no_advice():
    (said,) = explain_reading([Reading(0.064, 64, 7)], prediction(step=0.001))
    assert "it would take 64 loader processes for each worker: prepare samples beforehand" in said


def test_reading_that_one_process_hides_is_said_as_such():
    (said,) = explain_reading([Reading(0.032, 32, 7)], prediction(step=0.2))
    assert "takes one process 64 ms, which 1 loader process for each worker would hide (--loader-workers 1;" in said


def test_what_costs_hardly_anything_is_left_out():
    assert list(explain_reading([Reading(0.0032, 32, 7)], prediction(step=0.2))) == []
    assert list(explain_reading([], prediction(step=0.2))) == []
