"""What a record of a script says beyond that of any run."""

from pathlib import Path

from paceline.runs.scripts.outcome import epoch_samples, script_findings
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
