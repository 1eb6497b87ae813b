"""Energy, cost and memory from the command line to the stored record and back."""

import json

import pytest

from integration.conftest import Tool

SOURCES = {"estimated", "rapl"}
RUN = ("run", "--strategy", "fake", "--epochs", "2", "--workers", "2", "--watts-per-core", "10")


def test_energy_and_memory_of_a_real_run_are_stored_and_shown(tool: Tool) -> None:
    assert tool(*RUN).code == 0
    (record,) = tool.records()
    assert record.energy is not None
    assert record.energy.source in SOURCES
    if record.energy.source == "estimated":
        assert record.energy.watts_per_core == 10
        assert [epoch.joules for epoch in record.epochs] == [
            pytest.approx(10 * epoch.cpu_seconds) for epoch in record.epochs
        ]
    for rank in record.ranks:
        assert rank.memory is not None
        assert 0 < rank.memory.baseline_bytes <= rank.memory.peak_bytes
        assert rank.memory.steady_bytes <= rank.memory.peak_bytes <= rank.peak_memory_bytes
    shown = json.loads(tool("show", "--json", "--price-per-device-hour", "3600").out)
    (row,) = shown["rows"]
    assert row["energy_source"] == record.energy.source
    assert row["cost_per_epoch"] == pytest.approx(2 * record.epochs[-1].seconds)
    assert [one["rank"] for one in shown["memory"]] == [0, 1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "--strategy", "fake", "--watts-per-core", "0"], "is no power"),
        (["show", "--target-accuracy", "90"], "is no share of the test set"),
        (["show", "--price-per-device-hour", "-1"], "is no price"),
    ],
)
def test_an_energy_or_cost_option_that_makes_no_sense_is_refused(tool: Tool, words: list[str], said: str) -> None:
    ended = tool(*words)
    assert ended.code == 2
    assert said in " ".join(ended.err.split())
    assert "paceline.db" not in tool.listing()
