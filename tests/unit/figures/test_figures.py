"""Figures: each applies only where the data can answer its question, and says what a reader must know."""

import json
import re
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import vl_convert

from paceline.analysis.frame import csv_text
from paceline.analysis.rows import Row, summarise
from paceline.figures import figure, figures
from paceline.figures.base import MOST_SETTINGS, PALETTE, colours
from paceline.figures.files import shown_values, write_figure
from paceline.figures.marks import MOST_BARS
from paceline.plan import complete
from paceline.spec import RunSpec
from paceline.strategies import strategies
from unit.figures import example_records

ALWAYS = {"ranking", "scaling", "efficiency", "energy", "memory", "first-epoch", "losses"}
BY_BATCH = {"batch-size", "heat-map", "break-even"}
WHAT_APPLIES = {
    "scaling": ALWAYS | BY_BATCH | {"model-size", "data-seconds", "data-size"},
    "convergence": (ALWAYS | {"learning"}),
    "model-size": ALWAYS | {"model-size"},
    "batch-size": ALWAYS | BY_BATCH,
    "data-size": ALWAYS | {"data-seconds", "data-size"},
    "quick": ALWAYS | {"breakdown"},
    "links": ALWAYS | {"links"},
    # Most of its runs have one epoch, and are of different lengths.
    "batch-regimes": (ALWAYS | BY_BATCH | {"batch-regimes", "time-to-target", "noise-scale", "learning"})
    - {"first-epoch", "batch-size"},
    # All their runs have as many workers.
    "asynchrony": {"ranking", "energy", "memory", "losses", "asynchrony"},
    "elastic": {"ranking", "energy", "memory", "losses", "membership"},
}


@cache
def rows(study: str) -> tuple[Row, ...]:
    return tuple(summarise(example_records.built_in(study, instrumented=study == "quick")))


@cache
def drawn(study: str, name: str) -> dict[str, Any]:
    return figure(name).draw(rows(study)).to_dict()


def spec(study: str, name: str) -> str:
    return json.dumps(drawn(study, name), ensure_ascii=False)


def title(study: str, name: str) -> tuple[str, str]:
    told = drawn(study, name)["title"]
    return str(told["text"]), " ".join(told["subtitle"])


# Those that apply always are drawn of a study with one setting and of one with many.
DRAWN = [
    (study, name)
    for study, names in WHAT_APPLIES.items()
    for name in sorted(names if study in ("quick", "scaling") else names - ALWAYS)
]


@pytest.mark.parametrize("study", WHAT_APPLIES)
def test_the_figures_of_a_study_are_those_that_its_data_can_answer(study):
    assert {name for name, one in figures().items() if one.applies(rows(study))} == WHAT_APPLIES[study]


@pytest.mark.parametrize("name", figures())
def test_no_figure_applies_to_nothing(name):
    assert not figure(name).applies([])


@pytest.mark.parametrize("name", figures())
def test_every_figure_is_drawn_by_some_built_in_study(name):
    assert any(name in names for names in WHAT_APPLIES.values())


def test_figures_stand_in_an_order_of_their_own_and_ask_different_questions():
    assert len({one.place for one in figures().values()}) == len(figures())
    assert len({one.question for one in figures().values()}) == len(figures())
    assert all(one.question.endswith("?") for one in figures().values())


@pytest.mark.parametrize(("study", "name"), DRAWN)
def test_every_figure_becomes_a_picture(study, name):
    assert vl_convert.vegalite_to_svg(drawn(study, name)).startswith("<svg")


@pytest.mark.parametrize(("study", "name"), DRAWN)
def test_every_figure_says_what_was_shrunk(study, name):
    assert f"Shrunk: {rows(study)[0].spec.shrunk.text}" in title(study, name)[1]


@pytest.mark.parametrize(("study", "name"), DRAWN)
def test_every_axis_has_a_title_unless_its_names_say_all(study, name):
    def axes(node):
        if isinstance(node, dict):
            for key, inner in node.items():
                if key in ("x", "y") and isinstance(inner, dict) and "field" in inner and "scale" in inner:
                    yield inner
                yield from axes(inner)
        elif isinstance(node, list):
            for inner in node:
                yield from axes(inner)

    for axis in axes(json.loads(spec(study, name))):
        assert axis.get("title") or axis["field"] in ("name", "label_at"), axis


@pytest.mark.parametrize("name", sorted(WHAT_APPLIES["scaling"] - {"losses", "memory"}))
def test_an_oversubscribed_machine_is_marked_in_the_picture(name):
    assert "oversubscribed" in spec("scaling", name)


def test_an_estimate_of_energy_is_called_one_on_the_axis_and_explained():
    assert "joules per epoch (estimated)" in spec("quick", "energy")
    assert "Estimated, not measured: CPU seconds x 6.75 W for each busy core" in title("quick", "energy")[1]


@pytest.mark.parametrize("name", ["scaling", "batch-size", "model-size", "data-seconds", "first-epoch", "ranking"])
def test_the_range_of_the_repeats_is_drawn(name):
    study = {"batch-size": "batch-size", "model-size": "model-size", "data-seconds": "data-size"}.get(name, "quick")
    assert '"low"' in spec(study, name)
    assert '"high"' in spec(study, name)


def test_published_numbers_stand_beside_runs_like_theirs():
    said = spec("convergence", "efficiency")
    for number in ("69.63 %", "109.47 s", "78.61 s"):
        assert number in said


def test_published_numbers_stand_beside_no_other_runs():
    assert "Bhilegaonkar" not in spec("quick", "efficiency")


def test_few_settings_are_panels_and_many_are_chosen_from_a_list_with_the_fullest_shown():
    assert "params" not in drawn("quick", "ranking")
    (choice,) = (one for one in drawn("scaling", "ranking")["params"] if "bind" in one)
    assert len(choice["bind"]["options"]) > MOST_SETTINGS
    assert choice["value"] in choice["bind"]["options"]
    assert "setting_choice" in title("scaling", "ranking")[0]


def test_more_series_than_colours_are_grey():
    names = [name for name in strategies() if name.startswith(("torch-", "tf-", "jax-")) and name != "torch-dp"]
    many = summarise(example_records.of_strategies(names))
    said = figure("scaling").draw(many).to_dict()
    assert f"Grey: all but the {len(PALETTE)} fastest" in " ".join(said["title"]["subtitle"])
    figure("first-epoch").draw(many).to_dict()


def test_series_that_are_never_drawn_together_may_share_a_colour_and_others_never_do():
    names = [f"series-{number}" for number in range(len(PALETTE) + 2)]
    panels = [names[: len(PALETTE)], names[1:3] + names[len(PALETTE) :]]
    scale = colours(names, panels).to_dict()["scale"]
    told = dict(zip(scale["domain"], scale["range"], strict=True))
    assert set(told.values()) <= set(PALETTE)
    for panel in panels:
        assert len({told[name] for name in panel}) == len(panel)


def test_a_figure_does_not_say_what_was_shrunk_in_runs_that_it_does_not_show():
    both = [*rows("convergence"), *rows("quick")]
    said = " ".join(figure("learning").draw(both).to_dict()["title"]["subtitle"])
    assert "5,000 of 60,000 images" in said
    assert "1,024 of 5,000 images" not in said


def test_no_line_has_two_points_at_one_place():
    for study in ("scaling", "data-size", "convergence"):
        points = [
            (value.get("setting"), value["panel"], value["series"], value["workers"])
            for value in shown_values(drawn(study, "first-epoch"))
        ]
        assert len(points) == len(set(points)) > 0


def test_strategies_are_ranked_with_the_fastest_marked():
    values = shown_values(drawn("quick", "ranking"))
    rates = [value["rate"] for value in values]
    assert rates == sorted(rates, reverse=True)
    assert [value["kind"] for value in values] == ["fastest"] + ["others"] * (len(values) - 1)


def test_the_parts_of_a_step_add_up_to_it():
    values = shown_values(drawn("quick", "breakdown"))
    for name in {value["name"] for value in values}:
        own = [value for value in values if value["name"] == name]
        step = sum(value["milliseconds"] for value in own)
        assert (own[-1]["low"], own[-1]["high"]) == pytest.approx((0.97 * step, 1.08 * step))


def test_a_breakdown_from_before_ranges_were_kept_is_drawn_without_them():
    older = [replace(row, breakdown=tuple(replace(one, step_low=None, step_high=None) for one in row.breakdown))
             for row in rows("quick")]  # fmt: skip
    for value in shown_values(figure("breakdown").draw(older).to_dict()):
        assert value.get("low") == value.get("high")


def test_the_peak_of_a_process_lies_within_the_range_of_its_repeats():
    ends = [value for value in shown_values(drawn("quick", "memory")) if value["peak"] is not None]
    assert ends
    for value in ends:
        assert value["low"] <= value["peak"] <= value["high"]


def test_a_heat_map_says_how_far_repeats_were_apart():
    repeated = shown_values(drawn("batch-size", "heat-map"))
    assert all(re.fullmatch(r"± \d+%", value["range"]) for value in repeated)
    once = figure("heat-map").draw(summarise(example_records.built_in("batch-size", repeats=1))).to_dict()
    assert {value["range"] for value in shown_values(once)} == {""}


def test_a_figure_is_written_as_svg_png_and_its_numbers(tmp_path):
    written = write_figure(figure("ranking"), rows("quick"), tmp_path / "figures")
    assert [path.name for path in written] == ["ranking.svg", "ranking.png", "ranking.csv"]
    assert written[0].read_text().startswith("<svg")
    assert written[1].read_bytes().startswith(b"\x89PNG")
    header, *lines = written[2].read_text().splitlines()
    assert header.startswith("name,rate,low,high")
    assert len(lines) == len(rows("quick"))


def test_numbers_that_several_panels_show_are_written_once():
    node = {"data": {"values": [{"a": 1}]}}
    assert shown_values({"concat": [node, node, {"data": {"values": [{"b": 2}]}}]}) == [
        {"a": 1, "b": None},
        {"a": None, "b": 2},
    ]
    assert csv_text([]) == ""


@pytest.mark.parametrize("name", ["ranking", "energy", "memory"])
def test_more_bars_than_can_be_compared_are_left_to_the_table(name):
    many = [f"fake{number}" for number in range(MOST_BARS)]
    shown = summarise(
        [
            one.model_copy(update={"spec": one.spec.model_copy(update={"strategy": strategy})})
            for strategy in many
            for one in example_records.of_strategies(["torch-ddp"])
        ]
    )
    picture = figure(name).draw(shown).to_dict()
    assert len({value["name"] for value in shown_values(picture)}) == MOST_BARS
    assert f"The {MOST_BARS} " in " ".join(picture["title"]["subtitle"])


def test_a_panel_without_values_is_left_out_and_settings_that_are_far_apart_have_axes_of_their_own() -> None:
    """One strategy in each of two settings, the second a hundred times as slow."""
    records = []
    for strategy, workload, batch in (("torch-ddp", "mnist-small", 256), ("tf-mirrored", "mnist-large", 512)):
        for workers in (1, 2):
            spec = RunSpec(strategy=strategy, workload=workload, workers=workers, global_batch=batch, epochs=2)
            records.append(example_records.record(complete(spec)))
    panels = figure("first-epoch").draw(summarise(records)).to_dict()
    titles = [panel["title"]["text"] for panel in panels["concat"]]
    assert titles == ["tf-mirrored", "torch-ddp"] or titles == ["torch-ddp", "tf-mirrored"]
    assert panels["resolve"]["scale"].get("y") is None
    tops = re.findall(r'"domainMax": ([0-9.]+)', json.dumps(panels))
    assert len(set(tops)) == 2


def test_only_what_goes_on_is_named_where_all_lines_begin() -> None:
    specs = [("torch-ddp", 1), ("torch-ddp", 2), ("torch-single", 1)]
    records = [
        example_records.record(
            complete(RunSpec(strategy=name, workload="mlp", workers=workers, global_batch=256, epochs=2))
        )
        for name, workers in specs
    ]
    text = json.dumps(figure("efficiency").draw(summarise(records)).to_dict(), ensure_ascii=False)
    labels = re.findall(r'"speedup_label": "([^"]+)"', text)
    assert {label.split()[0] for label in labels} == {"torch-ddp"}
    alone = figure("efficiency").draw([row for row in summarise(records) if row.spec.workers == 2]).to_dict()
    assert len(alone["concat"]) == 1
