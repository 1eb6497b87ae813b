"""Findings that only many runs show, and those of single runs gathered."""

import pytest

from paceline.analysis.findings import gather_findings
from paceline.analysis.rows import summarise


def found(records):
    return {item.finding.code: item for item in gather_findings(records, summarise(records))}


def test_fewer_than_three_repeats_are_a_finding_with_the_option_to_use(make_record):
    item = found([make_record(repeat=0), make_record(repeat=1)])["few_repeats"]
    assert "twice only" in item.finding.text
    assert "--repeats 3" in item.finding.hint
    assert item.where == ("fake x1",)


def test_three_alike_repeats_are_no_finding(make_record):
    assert found([make_record(repeat=repeat) for repeat in range(3)]) == {}


def test_a_spread_above_a_tenth_is_a_finding(make_record):
    records = [make_record(rate, repeat) for repeat, rate in enumerate((1000.0, 1050.0, 1150.0))]
    assert "differ by up to 14%" in found(records)["wide_spread"].finding.text


def test_a_finding_of_several_runs_is_told_once_with_every_place(make_record):
    records = [make_record(workers=w, findings=("other_load",), repeat=r) for w in (1, 2) for r in range(3)]
    assert found(records)["other_load"].where == ("fake x1", "fake x2")


def test_the_same_strategy_in_several_settings_is_counted_in_each_and_said_once(make_record):
    kinds = (("mnist-small", 1), ("mnist-large", 1), ("mnist-large", 2))
    records = [make_record(workload=name, workers=count, findings=("other_load",), repeat=r)
               for name, count in kinds for r in range(3)]  # fmt: skip
    item = found(records)["other_load"]
    assert item.where == ("fake x1 (2 settings)", "fake x2 (mnist-large)")
    assert (item.count, item.total) == (3, 3)


def test_runs_from_unlike_environments_are_a_finding_that_names_the_fields(make_record):
    records = [make_record(repeat=r, environment={"cpu": f"kind {r}", "git_commit": str(r)}) for r in range(3)]
    assert "cpu differ" in found(records)["unlike_environments"].finding.text


def test_another_commit_or_host_name_is_no_unlike_environment(make_record):
    records = [make_record(repeat=r, environment={"git_commit": str(r), "host": str(r)}) for r in range(3)]
    assert "unlike_environments" not in found(records)


def test_findings_of_runs_that_failed_are_not_told(make_record):
    assert "other_load" not in found([make_record(None, findings=("other_load",))])


@pytest.mark.parametrize(
    ("older", "newer", "mixed"),
    [
        ({"link_bytes_per_second": 2e9}, {"slice_transport": "p2p"}, True),
        ({"slice_transport": "socket"}, {"slice_transport": "p2p"}, True),
        ({"slice_transport": "p2p"}, {"slice_transport": "p2p"}, False),
        ({}, {"slice_transport": "p2p"}, False),
    ],
)
def test_slices_with_a_fast_and_a_slow_link_side_by_side_are_a_finding(make_record, older, newer, mixed):
    records = [
        record.model_copy(update={"ranks": (record.ranks[0].model_copy(update={"details": details}),)})
        for repeat, details in enumerate((older, newer))
        for record in [make_record(repeat=repeat, device="cuda-slice", slices=4, workers=2)]
    ]
    assert ("unlike_links" in found(records)) is mixed


def test_a_slow_link_that_was_asked_for_is_no_unlike_link(make_record):
    records = [
        record.model_copy(
            update={"ranks": (record.ranks[0].model_copy(update={"details": {"slice_transport": link}}),)}
        )
        for transport, link in (("auto", "p2p"), ("socket", "socket"))
        for record in [make_record(device="cuda-slice", slices=4, workers=2, transport=transport)]
    ]
    assert "unlike_links" not in found(records)
