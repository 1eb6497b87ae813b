"""What earlier runs tell of reading data, beside a prediction that leaves it out."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from paceline.recommend.reading import Reading, explain_reading, reading_of
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


def test_the_newest_run_of_the_model_tells_what_a_sample_takes(make_record, model):
    asked_about = RunSpec(model=model, global_batch=8, epochs=1)
    records = [record(make_record, model, 0.02, 3), record(make_record, model, 0.032, 5)]
    # 32 ms for the 32 samples of each of two workers.
    assert reading_of(asked_about, records) == Reading(pytest.approx(0.001), 5)


def test_runs_of_other_models_or_without_reading_tell_nothing(make_record, model):
    other = RunSpec(model=model.model_copy(update={"digest": "other"}), global_batch=8, epochs=1)
    assert reading_of(other, [record(make_record, model, 0.02, 3)]) is None
    asked_about = RunSpec(model=model, global_batch=8, epochs=1)
    assert reading_of(asked_about, [record(make_record, model, None, 3), make_record(id=4)]) is None


def test_a_loader_that_would_set_the_pace_is_named_with_the_processes_it_takes():
    (said,) = explain_reading(Reading(0.001, 7), prediction(step=0.02))
    assert said == (
        "Reading data, not the strategy, would set the pace: one process reads a batch in 64 ms, so 4 loader processes "
        "for each worker would keep up (--loader-workers 4) (from run 7; the prediction leaves reading out)."
    )


def test_reading_that_one_process_hides_is_said_as_such():
    (said,) = explain_reading(Reading(0.001, 7), prediction(step=0.2))
    assert "takes one process 64 ms, which 1 loader process for each worker would hide (--loader-workers 1;" in said


def test_what_costs_hardly_anything_is_left_out():
    assert list(explain_reading(Reading(0.0001, 7), prediction(step=0.2))) == []
    assert list(explain_reading(None, prediction(step=0.2))) == []
