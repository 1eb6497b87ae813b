"""What a record of a script says beyond that of any run."""

from pathlib import Path

import pytest

from paceline.record import Finding
from paceline.runs.scripts.outcome import epoch_samples, missing_steps, script_findings
from paceline.runs.scripts.process import OPTIMIZER_STEPS, SKIPPED_STEPS, SOURCE, UNEVEN_STEPS
from paceline.runs.wire import EpochResult, Measurements, ProcessStart, RankResult
from paceline.spec import RunSpec, ScriptFile

SPEC = RunSpec(script=ScriptFile(path=Path("train.py"), digest="x"), strategy="script", workers=2)


def view(samples: int | None) -> EpochResult:
    return EpochResult(
        epoch=0, stamps=[0, 10, 20], ended=20, cpu_seconds=1.0, losses=None, evaluation=None, samples=samples
    )


def result(samples: int | None) -> RankResult:
    start = ProcessStart(started=0, imported=0, opened=0)
    return RankResult(start=start, measured=Measurements(epochs=[view(samples)]))


def test_processes_that_say_nothing_are_taken_to_have_as_many_samples_as_those_that_do() -> None:
    assert epoch_samples(SPEC, [view(30), view(None)], steps=2) == 60
    codes = [finding.code for finding in script_findings(SPEC, [result(30), result(None)])]
    assert codes == ["samples_of_some_ranks"]


def test_samples_that_all_say_are_added_and_steps_count_where_none_does() -> None:
    assert epoch_samples(SPEC, [view(30), view(10)], steps=2) == 40
    assert epoch_samples(SPEC, [view(None), view(None)], steps=2) == 2
    assert script_findings(SPEC, [result(30), result(10)]) == []
    assert [finding.code for finding in script_findings(SPEC, [result(None)])] == ["steps_counted"]


def test_optimizers_that_step_unequally_often_are_told() -> None:
    uneven = result(10)
    uneven.measured.details.update({OPTIMIZER_STEPS: 600, UNEVEN_STEPS: 300})
    (finding,) = script_findings(SPEC, [uneven, uneven])
    assert finding.code == "several_optimizers"
    assert "one of them made 600 steps, which are counted, the others 300" in finding.text


def test_many_updates_that_a_scaler_skipped_are_told_and_the_few_at_the_start_are_not() -> None:
    for skipped, codes in ((3, []), (80, ["skipped_updates"])):
        scaled = result(10)
        scaled.measured.details.update({OPTIMIZER_STEPS: 800, SKIPPED_STEPS: skipped})
        assert [finding.code for finding in script_findings(SPEC, [scaled, scaled])] == codes


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import torch.multiprocessing as mp\nmp.spawn(train, nprocs=2)", "which starts processes of its own"),
        ("print('nothing')", "it calls no optimizer of PyTorch; put `with paceline.step"),
        ("import keras\nmodel.fit(x)", "add `callbacks=[paceline.callbacks.keras_callback(batch_size)]` to fit"),
        ("no python", "it calls no optimizer of PyTorch; put `with paceline.step"),
    ],
)
def test_a_script_in_which_no_step_was_seen_says_what_to_do(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "train.py"
    path.write_text(text)
    spec = SPEC.model_copy(update={"script": ScriptFile(path=path, digest="x")})
    empty = result(None)
    empty.measured.epochs.clear()
    assert said in str(missing_steps(spec, [empty]))


def paused(source: str, stamps: list[int]) -> list[Finding]:
    """What is told of pauses among steps that ended then, of a script whose steps were learnt from that source."""
    start = ProcessStart(started=0, imported=0, opened=0)
    told = view(1).model_copy(update={"stamps": stamps})
    return script_findings(
        SPEC.model_copy(update={"workers": 1}),
        [RankResult(start=start, measured=Measurements(epochs=[told], details={SOURCE: source}))],
    )


def test_long_gaps_are_told_with_what_to_do_about_them_and_the_first_step_is_none() -> None:
    (finding,) = paused("optimizer", [0, 10, 20, 30, 530, 540])
    assert "1 of 4 steps (optimizer) were over 10 times as long as usual" in finding.text
    assert "paceline.watch(loader)" in finding.hint
    (finding,) = paused("watch", [0, 10, 20, 30, 530, 540])
    assert "paceline.watch(loader)" not in finding.hint
    assert paused("callback", [0, 500, 510, 520, 530]) == []
    assert paused("optimizer", [0, 500]) == []
