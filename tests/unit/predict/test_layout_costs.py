"""Costs of all layouts of so many devices: counted, sorted, and told apart by what is sent along which dimension."""

from typing import Any

import pytest

from paceline.layout import DIMENSIONS, Layout, all_layouts
from paceline.predict.layout_costs import LayoutCost, idle_share, layout_costs, strategies_with_layouts
from paceline.predict.question import Question
from paceline.strategies import strategy
from paceline.systems.files import load_hardware

MODEL: dict[str, Any] = {
    "workload": "transformer", "options": {"depth": 8, "width": 1024, "heads": 16}, "input_shape": (512,),
    "classes": 1000, "global_batches": (64,), "workers": (8,),
}  # fmt: skip


def question(**fields: Any) -> Question:
    return Question(load_hardware("8xh100-nvlink"), **{**MODEL, **fields})


def costs(order: str = "held", **fields: Any) -> dict[str, LayoutCost]:
    listed, _ = layout_costs(question(**fields), "torch-mesh", 8, order, knows_memory=True)  # type: ignore[arg-type]
    return {cost.layout.text: cost for cost in listed}


def test_every_layout_is_listed_or_left_out_with_a_reason() -> None:
    listed, refused = layout_costs(question(options={**MODEL["options"], "heads": 4}), "torch-mesh", 8, "held", True)
    assert len(listed) + len(refused) == len(all_layouts(8))
    assert "4 heads cannot be split over tensor=8" in refused["tensor=8"]
    assert all(cost.layout.workers == 8 for cost in listed)


def test_the_order_is_by_what_is_held_or_sent() -> None:
    held = [cost.heaviest.held_bytes for cost in costs("held").values()]
    sent = [cost.busiest.sent_bytes for cost in costs("sent").values()]
    assert held == sorted(held) and sent == sorted(sent)


def test_what_does_not_fit_comes_last() -> None:
    listed = list(costs(options={"depth": 24, "width": 6144, "heads": 48}, global_batches=(16,)).values())
    fitting = [cost.fits for cost in listed]
    assert {*fitting} == {True, False}
    assert fitting == sorted(fitting, reverse=True)


@pytest.mark.parametrize(
    ("layout", "contents", "dimensions"),
    [
        ("replicate=8", {"gradients"}, {"replicate"}),
        ("shard=8", {"gradients", "parameters"}, {"shard"}),
        ("tensor=8", {"gradients", "activations"}, {"tensor"}),
        ("pipeline=8", {"activations"}, {"pipeline"}),
        ("shard=2,tensor=2,pipeline=2", {"gradients", "parameters", "activations"}, {"shard", "tensor", "pipeline"}),
    ],
)
def test_what_is_sent_is_told_apart(layout: str, contents: set[str], dimensions: set[str]) -> None:
    cost = costs()[layout]
    assert set(cost.sent_by_content) == contents
    assert set(cost.sent_by_dimension) == dimensions
    for parts in (cost.sent_by_content, cost.sent_by_dimension):
        assert sum(parts.values()) == pytest.approx(cost.busiest.sent_bytes)


def test_copies_send_gradients_twice_and_shards_parameters_twice_more() -> None:
    model = question().facts.parameter_bytes
    assert costs()["replicate=8"].sent_by_content["gradients"] == pytest.approx(2 * 7 / 8 * model)
    # Gathered for each pass in two bytes each, as a GPU computes with them.
    assert costs()["shard=8"].sent_by_content["parameters"] == pytest.approx(2 * 7 / 8 * model / 2, rel=0.01)


def test_a_pipeline_of_equal_stages_idles_as_the_formula_says() -> None:
    spec = next(question(options={"depth": 6}, classes=32).specs("torch-mesh", {"layout": "pipeline=2"}))
    footprint = strategy("torch-mesh").footprint(spec, question(options={"depth": 6}, classes=32).facts)
    # (p - 1) / (m + p - 1) with 2 ranks and 4 micro-batches; stages are not quite alike.
    assert idle_share(footprint) == pytest.approx(1 / 5, abs=0.02)
    assert costs()["shard=8"].bubble == 0


def test_layouts_are_those_of_any_strategy_that_takes_them_and_pytorchs_come_first() -> None:
    names = strategies_with_layouts()
    assert names[0].framework == "torch"
    assert all("layout" in chosen.needs.heeds for chosen in names)


def test_every_dimension_has_a_layout_of_its_own_alone() -> None:
    assert {Layout(**{name: 8}) for name in ("replicate", "shard", "tensor", "pipeline")} <= set(all_layouts(8))
    assert set(DIMENSIONS) >= {"replicate", "shard", "tensor", "pipeline"}
