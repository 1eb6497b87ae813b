"""Paceline from Python: a study in, results out."""

import sys
import tempfile
from pathlib import Path

import polars
import pytest

import paceline
from paceline.errors import SpecError, StoreError, UserError

STUDY = paceline.Study(
    name="from-python",
    repeats=2,
    fixed={"strategy": "fake", "global_batch": 100, "epochs": 2, "train_samples": 500, "knobs": {"step_ms": 8.0}},
    factors={"workers": [1, 2]},
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("python")


@pytest.fixture(scope="module")
def results(place: Path) -> paceline.Results:
    """Two configurations, run twice each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(place))
        return paceline.run(STUDY, place / "results.db")


def test_a_study_gives_its_records_with_the_steps_of_every_rank(results: paceline.Results) -> None:
    assert len(results.records) == 4
    for record in results.records:
        assert record.status is paceline.Status.OK
        per_step = 0.008 if record.spec.workers == 1 else 0.004 + 0.001
        assert sorted(record.step_seconds) == list(range(record.spec.workers))
        for seconds in record.step_seconds.values():
            assert seconds == pytest.approx([per_step] * 10)
        assert len(record.losses) == 10


def test_the_table_has_a_line_for_each_configuration(results: paceline.Results) -> None:
    table = results.table()
    assert isinstance(table, polars.DataFrame)
    assert table.select("strategy", "workers", "runs").rows() == [("fake", 1, 2), ("fake", 2, 2)]
    assert table["samples_per_second"].to_list() == pytest.approx([12500.0, 20000.0])
    assert table["speedup"].to_list() == pytest.approx([1.0, 1.6])


def test_a_figure_is_drawn_by_name_and_can_be_saved(results: paceline.Results, place: Path) -> None:
    figure = results.figure("scaling")
    figure.save(str(place / "scaling.svg"))
    assert (place / "scaling.svg").read_text().startswith("<svg")
    with pytest.raises(SpecError, match="there is no figure 'scalling'; did you mean 'scaling'"):
        results.figure("scalling")


def test_results_display_themselves_in_a_notebook(results: paceline.Results) -> None:
    shown = results._repr_html_()
    assert "<p>Fastest here: fake with 2 workers, 20,000 samples/s, 1.60 times one worker" in shown
    assert "<th>fake x2</th><td>20,000</td><td>1.60x</td>" in shown
    assert repr(results) == "4 runs of 2 configurations"


def test_figures_display_themselves_as_pictures_without_any_script(results: paceline.Results) -> None:
    shown = results.figures("scaling")._repr_html_()
    assert shown.startswith("<h4>Does adding workers pay?</h4><img ")
    assert "<script" not in shown
    assert len(results.figures().pictures) >= 2
    with pytest.raises(SpecError, match="there is no figure 'none'"):
        results.figures("none")


def test_what_a_user_wrote_is_escaped_where_results_are_shown(results: paceline.Results) -> None:
    hostile = "<script>alert(1)</script>"
    spec = results.records[0].spec.model_copy(update={"workload": hostile})
    failed = results.records[0].model_copy(
        update={"spec": spec, "status": paceline.Status.FAILED, "reason": hostile, "epochs": ()}
    )
    shown = paceline.Results((failed,))._repr_html_()
    assert "<script>" not in shown
    assert shown.count("&lt;script&gt;") == 1


def test_tables_come_for_pandas_too_and_at_every_level(results: paceline.Results) -> None:
    frame = results.to_pandas("runs")
    assert frame["samples_per_second"].tolist() == pytest.approx(results.table("runs")["samples_per_second"].to_list())
    assert len(results.to_pandas("epochs")) == 8
    assert results.table("steps").height == 2 * 10 + 2 * 2 * 10


def test_without_pandas_it_is_said_how_to_get_it(results: paceline.Results, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UserError, match=r"to_pandas\(\) needs pandas, which is not installed: pip install pandas"):
        results.to_pandas()


def test_results_are_exported_by_the_names_of_the_command(results: paceline.Results, place: Path) -> None:
    assert results.export("parquet", place / "out.parquet", of="epochs") == str(place / "out.parquet")
    assert polars.read_parquet(place / "out.parquet").height == 8


def test_the_report_is_written_where_it_is_wanted(results: paceline.Results, place: Path) -> None:
    path = results.report(place / "new" / "page.html")
    assert path == place / "new" / "page.html"
    assert "Fastest here: fake with 2 workers" in path.read_text()


def test_running_again_makes_nothing_new_and_gives_the_same_records(results: paceline.Results, place: Path) -> None:
    again = paceline.run(STUDY, place / "results.db")
    assert again.records == results.records


def test_stored_results_can_be_loaded(results: paceline.Results, place: Path) -> None:
    assert paceline.load(place / "results.db", study="from-python").records == results.records
    assert paceline.load(place / "results.db", study="another").records == ()
    with pytest.raises(StoreError, match="there is no results file"):
        paceline.load(place / "absent.db")


def test_wrong_input_is_an_exception_with_the_sentence_that_the_command_line_prints(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="global_batch 30 does not divide over 4 workers; use a multiple of 4"):
        paceline.run(
            paceline.Study(fixed={"strategy": "fake", "global_batch": 30, "steps": 2, "workers": 4}),
            tmp_path / "results.db",
        )


def test_no_folder_of_a_run_is_left(results: paceline.Results, place: Path) -> None:
    assert list(place.glob("paceline-run-*")) == []
