"""What `paceline show` refuses and says once; the rest of its text is compared in `golden`."""

import io

import pytest
from rich.console import Console

from paceline.analysis.findings import gather_findings
from paceline.analysis.rows import summarise
from paceline.cli import show
from paceline.cli.show import checked_options, print_results
from paceline.errors import UserError
from paceline.record import Epoch, Look, Rank, Status


@pytest.mark.parametrize("target", [0.0, -0.1, 1.5, float("nan")])
def test_a_target_accuracy_that_is_no_share_is_refused(target):
    with pytest.raises(UserError, match="is no share of the test set; give one"):
        checked_options(target, None)


@pytest.mark.parametrize("price", [-1.0, float("inf"), float("nan")])
def test_a_price_of_energy_or_time_that_is_none_is_refused(price):
    with pytest.raises(UserError, match="is no price; give an amount such as"):
        checked_options(None, price)


@pytest.fixture
def printed(monkeypatch):
    """What is printed of records, on 80 columns."""

    def text_of(records):
        console = Console(width=80, file=io.StringIO())
        monkeypatch.setattr(show, "output", lambda: console)
        rows = summarise(records)
        print_results(rows, gather_findings(records, rows))
        return console.file.getvalue()

    return text_of


@pytest.fixture
def records(make_record, make_spec):
    """Three settings, in each of which two workers win and a third configuration is skipped."""
    rank = Rank(rank=0, role="worker", cores=(0,), cpu_seconds=1.0, peak_memory_bytes=1000)
    made = []
    for batch in (64, 128, 256):
        for workers in (1, 2):
            for repeat in range(3):
                epoch = Epoch(number=1, seconds=1.0 / workers, steps=10, samples=1000, cpu_seconds=1.0, train_loss=1.0)
                spec = make_spec(global_batch=batch, workers=workers)
                made.append(make_record(spec=spec, repeat=repeat, epochs=(epoch,), ranks=(rank,)))
        skipped = make_spec(global_batch=batch, workers=4)
        made.append(make_record(spec=skipped, status=Status.SKIPPED, reason="there are two cores"))
    return made


def test_what_gave_no_result_in_several_settings_is_said_once(printed, records):
    text = printed(records)
    assert text.count("there are two cores") == 1
    assert "skipped fake x4 in 3 settings: there are two cores" in text


def test_what_gave_no_result_in_one_setting_stands_below_its_table(printed, records):
    text = printed(records[:7])
    assert text.count("skipped fake x4: there are two cores") == 1
    assert text.index("skipped fake x4") < text.index("Fastest here")


def test_several_settings_end_with_a_table_of_verdicts_that_fits_80_columns(printed, records):
    lines = printed(records).splitlines()
    heading = next(number for number, line in enumerate(lines) if line.startswith("setting"))
    assert lines[heading].split() == ["setting", "best", "by", "how", "much", "how", "sure"]
    assert [" ".join(line.split()) for line in lines[heading + 1 : heading + 4]] == [
        f"global batch {batch} fake x2 100 % over fake x1 likely (3 runs)" for batch in (64, 128, 256)
    ]
    assert "how sure" not in printed(records[:14])


def test_runs_that_look_for_a_target_tell_after_how_many_steps_they_came_to_it(printed, records):
    assert "to tar-" not in printed(records)
    looks = (Look(step=1, test_accuracy=0.1), Look(step=7, test_accuracy=0.95))
    sought = [record.model_copy(update={"spec": record.spec.model_copy(update={"target_accuracy": 0.9})})
              for record in records if record.ok and record.spec.global_batch == 64]  # fmt: skip
    text = printed([record.model_copy(update={"looks": looks[: record.spec.workers]}) for record in sought])
    assert "to tar-" in text
    alone, two = (line for line in text.splitlines() if line.endswith(("never ", "7 ")))
    assert alone.endswith(" never ") and two.endswith(" 7 ")
