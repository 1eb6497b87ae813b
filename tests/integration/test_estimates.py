"""How long a study will take: told from short runs that leave nothing behind, or from what is stored."""

from pathlib import Path

from paceline.estimate import estimate_by_measuring, kind
from paceline.execute import plan_study
from paceline.spec import RunSpec
from paceline.store import Store
from paceline.study import Study

STUDY = Study(
    name="trial",
    fixed={"strategy": "fake", "dataset": "mnist-5k", "global_batch": 250, "epochs": 2},
    factors={"workers": [1, 2], "dataset_copies": [1, 4]},
)


def test_short_runs_tell_how_long_and_are_not_kept(tmp_path: Path) -> None:
    seen: list[RunSpec] = []
    with Store.open(tmp_path / "results.db") as store:
        plan = plan_study(STUDY, store)
        told = estimate_by_measuring(plan, store.records(), seen.append)
        assert store.records() == []
    assert told.seconds is not None and told.seconds > 0
    assert (told.stored, told.measured, told.extrapolated, told.failure) == (0, 2, 0, None)
    assert {kind(spec) for spec in seen} == {kind(run.spec) for run in plan.to_run}


def test_a_fault_of_a_short_run_is_told_in_its_own_words() -> None:
    faulty = STUDY.model_copy(update={"fixed": {**STUDY.fixed, "knobs": {"fault": "fail"}}})
    told = estimate_by_measuring(plan_study(faulty, None), [], lambda _spec: None)
    assert told.seconds is None
    assert told.failure == "rank 0 (worker): RuntimeError: this run was told to fail"
