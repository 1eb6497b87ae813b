"""What forms offer to choose from is what runs take."""

import pytest
from starlette.testclient import TestClient

from paceline.cli.run import run
from paceline.cli.serve import options_of
from paceline.layout import Layout
from paceline.strategies import strategies
from paceline.web import Site
from paceline.web.choices import known_lines, known_values


@pytest.mark.parametrize(
    ("name", "values"),
    [("precision", {"fp32", "bf16"}), ("device", {"cpu", "cuda"}), ("offload", {"true", "false"}),
     ("scale", {"tiny", "full"}), ("network", {"10g", "400g"}), ("reduction", {"fp32", "bf16"})],
)  # fmt: skip
def test_values_that_can_be_counted_are_offered(name: str, values: set[str]) -> None:
    assert values <= set(known_values(name))


@pytest.mark.parametrize("name", ["workers", "model", "epochs", "no such field"])
def test_values_that_cannot_be_counted_are_typed(name: str) -> None:
    assert known_values(name) == () and known_lines(name) == {}


def test_layouts_are_those_of_the_worker_counts() -> None:
    lines = known_lines("layout")
    assert lines["any count"][0][0] == "all"
    assert {Layout.from_text(text).workers for text, _ in lines["4 workers"]} == {4}


def test_knobs_are_offered_by_strategy_with_their_values_and_what_they_mean() -> None:
    lines = known_lines("knob")
    assert set(lines) == {name for name, strategy in strategies().items() if strategy.knobs}
    assert ("fault=hang", "what goes wrong") in lines["fake"]
    assert ("real_time=false", "sleep through the steps instead of only counting") in lines["fake"]


def test_the_form_says_what_each_strategy_does_and_keeps_what_was_chosen(client: TestClient, site: Site) -> None:
    site.options = options_of(run)
    text = client.get("/start?strategy=fake&precision=fp32,bf16&layout=all&scale=tiny").text
    for strategy in strategies().values():
        assert f'name="strategy" value="{strategy.name}"' in text and strategy.about in text
    assert 'name="precision" value="bf16" checked' in text and 'name="precision" value="tf32">' in text
    assert "<option selected>tiny</option>" in text and 'data-insert="layout"' in text and ">all</textarea>" in text
    assert "as_json" not in text and "--json" not in text
