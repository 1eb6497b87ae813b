"""The same figure on a phone and on a dark page."""

import json
from typing import Any

from paceline.figures.base import INK
from paceline.figures.variants import DARK, MARGIN, in_dark, narrowed, with_margins

WIDTH = 340
CHART: dict[str, Any] = {
    "columns": 2,
    "title": {"text": "Samples per second against the number of workers in use", "subtitle": ["many words " * 9]},
    "config": {"axis": {"labelLimit": 260}},
    "concat": [
        {"width": 660, "layer": [{"encoding": {"color": {"field": "series", "legend": {"columns": 3}}}}]},
        {"width": 20, "mark": "bar", "title": "a panel's own"},
    ],
}


def test_on_a_phone_panels_stand_below_each_other_and_are_no_wider_than_it() -> None:
    chart = narrowed(CHART, WIDTH)
    assert chart["columns"] == 1
    assert [panel["width"] for panel in chart["concat"]] == [165, 20]
    assert chart["concat"][0]["layer"][0]["encoding"]["color"]["legend"] == {"columns": 1}
    assert CHART["columns"] == 2 and CHART["concat"][0]["width"] == 660, "the chart itself stays as it is"


def test_on_a_phone_words_are_broken_into_lines_that_fit() -> None:
    title = narrowed(CHART, WIDTH)["title"]
    assert title["text"] == ["Samples per second against the number", "of workers in use"]
    assert max(map(len, title["subtitle"])) <= WIDTH // 7


def test_a_title_with_the_chosen_setting_keeps_it_in_a_line_of_its_own() -> None:
    words = "Samples per second against the number of workers in use"
    chart = {**CHART, "title": {"text": {"expr": f"[{json.dumps(words)}, setting_choice]"}}}
    lines = '["Samples per second against the number", "of workers in use", setting_choice]'
    assert narrowed(chart, WIDTH)["title"]["text"] == {"expr": lines}


def test_a_still_picture_has_the_chosen_setting_in_lines_that_fit() -> None:
    setting = "mlp, mnist-5k (first 500), global batch 100, 2 epochs, jitter=0.1"
    chart = {
        **CHART, "title": {"text": {"expr": '["Samples, and per second, against workers", setting_choice]'}},
        "params": [{"name": "setting_choice", "value": setting}],
    }  # fmt: skip
    lines = narrowed(chart, WIDTH, still=True)["title"]["text"]
    assert lines[:2] == ["Samples, and per second, against", "workers"]
    assert " ".join(lines[2:]) == setting and max(map(len, lines)) <= WIDTH // 7


def test_ink_is_light_on_a_dark_page_and_other_colours_stay() -> None:
    svg = f'<svg><path stroke="{INK}" fill="#009E73"/><text fill="black">#222222</text></svg>'
    assert in_dark(svg) == f'<svg><path stroke="{DARK[INK]}" fill="#009E73"/><text fill="#ececec">#222222</text></svg>'


def test_a_picture_has_room_at_its_sides_and_is_as_wide_as_its_titles_need() -> None:
    svg = '<svg class="marks" width="310" height="80" viewBox="0 0 310 80"><rect width="310" height="80"/></svg>'
    wide = with_margins(svg, 340)
    assert f'width="{340 + 2 * MARGIN}" height="80" viewBox="-{MARGIN} 0 {340 + 2 * MARGIN} 80">' in wide
    assert '<rect width="310" height="80"/>' in wide and 'viewBox="0 0 310 80"' not in wide
    assert f'width="{310 + 2 * MARGIN}"' in with_margins(svg)
    assert with_margins("<p>no picture</p>") == "<p>no picture</p>"
