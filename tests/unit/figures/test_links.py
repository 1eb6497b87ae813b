"""The figure of links: when it applies, and what its lines and names say."""

import json
from typing import Any

from paceline.analysis.rows import Row, summarise
from paceline.figures import figure
from paceline.plan import complete
from paceline.spec import RunSpec
from unit.figures import example_records

FIGURE = figure("links")
RUN = {"workload": "mnist-small", "dataset": "mnist-5k", "global_batch": 256, "epochs": 2}


def row(rate: float, **fields: Any) -> Row:
    spec = complete(RunSpec.model_validate({**RUN, **fields}))
    made = example_records.record(spec)
    epochs = tuple(
        epoch.model_copy(update={"seconds": epoch.steps * spec.samples_per_step / rate}) for epoch in made.epochs
    )
    return summarise([made.model_copy(update={"epochs": epochs})])[0]


def rows(*links: tuple[str, float]) -> list[Row]:
    return [
        row(1000.0, strategy="torch-single", workers=1),
        *(row(rate, strategy="torch-ddp", workers=2, link=link) for link, rate in links),
    ]


def drawn(members: list[Row]) -> str:
    return json.dumps(FIGURE.draw(members).to_dict())


def test_it_applies_when_two_links_differ_in_rate_alone_or_in_delay_alone() -> None:
    assert not FIGURE.applies(rows(("1gbit", 1500.0)))
    assert not FIGURE.applies(rows(("1gbit", 1500.0), ("100mbit:5ms", 700.0)))
    assert FIGURE.applies(rows(("1gbit", 1500.0), ("100mbit", 700.0)))
    assert FIGURE.applies(rows(("1gbit", 1500.0), ("1gbit:5ms", 700.0)))


def test_names_say_from_which_rate_on_a_strategy_pays() -> None:
    text = drawn(rows(("100mbit", 500.0), ("10gbit", 1500.0)))
    # Half way up from 500 to 1,500, and so half way from 100 Mbit/s to 10 Gbit/s on the logarithmic axis.
    assert "torch-ddp pays from 1 Gbit/s" in text
    assert "one worker" in text
    assert "does not pay" in drawn(rows(("100mbit", 500.0), ("10gbit", 900.0)))
    assert "pays throughout" in drawn(rows(("100mbit", 1100.0), ("10gbit", 1900.0)))


def test_rates_and_delays_have_panels_of_their_own() -> None:
    chart = FIGURE.draw(rows(("100mbit", 500.0), ("1gbit", 1200.0), ("1gbit:5ms", 700.0))).to_dict()
    assert len(chart["concat"]) == 2
    titles = [panel["title"]["text"] for panel in chart["concat"]]
    assert titles == ["no delay", "at 1 Gbit/s"]


def test_without_one_worker_there_is_no_line_to_beat() -> None:
    text = drawn(rows(("100mbit", 500.0), ("10gbit", 1500.0))[1:])
    assert "pays" not in text.replace("Names say from which rate on a strategy is faster than it", "")
