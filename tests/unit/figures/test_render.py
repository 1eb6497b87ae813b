"""Pictures are drawn in a process of their own, whose end is an error in words; names are made fit to print first."""

from pathlib import Path
from typing import Any

import pytest

from paceline.errors import UserError
from paceline.figures import figures
from paceline.figures.render import Renderer, vega_lite
from paceline.user_input.printable import printable

BAR: dict[str, Any] = {
    "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
    "mark": "bar",
    "encoding": {"x": {"field": "a", "type": "nominal"}, "y": {"field": "b", "type": "quantitative"}},
}
# With this in a name, the SVG library ends the process that it is in.
DEADLY = "\x01"


def bar(name: str) -> dict[str, Any]:
    return {**BAR, "data": {"values": [{"a": name, "b": 1}]}}


@pytest.fixture
def renderer():
    opened = Renderer()
    yield opened
    opened.close()


def test_a_renderer_that_breaks_down_is_an_error_in_words_and_the_next_picture_is_drawn(renderer):
    with pytest.raises(UserError, match="a figure cannot be drawn: the renderer ended with code -6"):
        renderer.draw("svg", bar(f"m{DEADLY}x"))
    assert renderer.draw("svg", bar("mx")).startswith(b"<svg")
    assert renderer.draw("png", bar("mx")).startswith(b"\x89PNG")


def test_a_chart_that_is_none_is_refused_with_the_renderers_words(renderer):
    with pytest.raises(UserError, match="a figure cannot be drawn: ValueError: "):
        renderer.draw("svg", {"mark": "no such mark"})
    assert renderer.draw("svg", bar("mx")).startswith(b"<svg")


@pytest.mark.parametrize(
    "text", ["", "print('no header')", "import time; time.sleep(3600)"], ids=["silent", "wrong", "late"]
)
def test_a_renderer_that_does_not_answer_as_it_should_is_ended(tmp_path: Path, text, monkeypatch):
    (tmp_path / "program.py").write_text(text)
    monkeypatch.setattr("paceline.figures.render.PATIENCE_SECONDS", 1.0)
    renderer = Renderer(tmp_path / "program.py")
    with pytest.raises(UserError, match="a figure cannot be drawn"):
        renderer.draw("svg", bar("mx"))
    renderer.close()


def test_names_with_control_characters_reach_no_renderer(renderer, make_spec, make_record):
    from paceline.analysis.rows import summarise
    from paceline.record import Epoch, Rank

    epochs = (Epoch(number=1, seconds=1.0, steps=4, samples=1000, cpu_seconds=1.0, train_loss=1.0),) * 2
    rank = Rank(rank=0, role="worker", cores=(0,), cpu_seconds=1.0, peak_memory_bytes=50_000_000)
    records = [
        make_record(spec=make_spec(workload=f"m{DEADLY}{number}\ufffe", workers=workers, dataset="mnist-5k"),
                    epochs=epochs, ranks=(rank,))
        for number in range(5) for workers in (1, 2)
    ]  # fmt: skip
    rows = summarise(records)
    drawn = [figure for figure in figures().values() if figure.applies(rows)]
    assert drawn
    for figure in drawn:
        assert renderer.draw("svg", vega_lite(figure, rows)).startswith(b"<svg"), figure.name


@pytest.mark.parametrize(
    ("text", "shown"),
    [("plain ✓ é 模型", "plain ✓ é 模型"), ("m\x01x", "m\\x01x"), ("a\x1b[31m", "a\\x1b[31m"), ("\udc80", "\\udc80"),
     ("\uffff", "\\uffff"), ("a\u202eb", "a\\u202eb"), ("👩\u200d💻", "👩\u200d💻"), ("a\tb", "a\\x09b"),
     ("\U0001ffff", "\\U0001ffff")],
)  # fmt: skip
def test_what_cannot_be_printed_is_written_as_its_number(text, shown):
    assert printable(text) == shown


def test_line_ends_are_kept_where_they_are_wanted():
    assert printable("a\r\n\tb\x00", keep="\r\n\t") == "a\r\n\tb\\x00"
