"""Traits that strategies declare: what is searched, and that what they refer to is there."""

from collections.abc import Iterator

import pytest

from paceline.contract.strategy import Strategy
from paceline.contract.traits import (
    MICROBATCHES_AND_SCHEDULE,
    Search,
    group_sizes,
    group_sizes_within_a_node,
    one_group_per_node,
)
from paceline.spec import BASELINE, RunSpec
from paceline.strategies import baseline, strategies, usual_on_several_devices
from paceline.systems.files import load_hardware

H100 = load_hardware("h100-nvlink")
FRAMEWORKS = ("torch", "tensorflow", "jax")


def flat(searches: tuple[Search, ...]) -> Iterator[Search]:
    """All of them, also those that are made within others."""
    for search in searches:
        yield search
        yield from flat(search.then)


def test_further_knobs_are_searched_with_each_value() -> None:
    settings = list(MICROBATCHES_AND_SCHEDULE.settings(4, H100, {}))
    assert settings == [
        {"microbatches": 4}, {"microbatches": 4, "schedule": "1f1b"},
        {"microbatches": 16}, {"microbatches": 16, "schedule": "1f1b"},
    ]  # fmt: skip


def test_what_the_user_fixed_is_not_searched() -> None:
    fixed = list(MICROBATCHES_AND_SCHEDULE.settings(4, H100, {"schedule": "gpipe"}))
    assert fixed == [{"microbatches": 4}, {"microbatches": 16}]
    assert list(MICROBATCHES_AND_SCHEDULE.settings(4, H100, {"microbatches": 8})) == []


def test_groups_divide_the_workers_and_the_default_is_predicted_anyway() -> None:
    assert list(group_sizes(other_than=2)(16, H100)) == [4, 8, 16]
    assert list(group_sizes(other_than=1)(12, H100)) == [2, 4]
    assert list(group_sizes_within_a_node(other_than=1)(16, H100)) == [2, 4, 8]


def test_groups_are_nodes_where_gpus_fill_several() -> None:
    assert one_group_per_node(32, H100) == (4,)
    assert one_group_per_node(8, H100) == one_group_per_node(12, H100) == ()
    assert one_group_per_node(4, load_hardware("cpu-2-cores")) == ()


@pytest.mark.parametrize("chosen", strategies().values(), ids=lambda chosen: chosen.name)
def test_a_search_is_of_knobs_that_the_strategy_has_and_leaves_out_their_default(chosen: Strategy) -> None:
    defaults = {name: RunSpec.model_fields[name].default for name in chosen.needs.heeds}
    defaults |= {knob.name: knob.default for knob in chosen.knobs}
    for search in flat(chosen.traits.searched):
        assert search.knob in defaults
        in_groups = search.knob in ("stages", "tensor", "hsdp_replicas")
        assert not in_groups or defaults[search.knob] not in list(search.values(16, H100))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_each_framework_has_one_baseline_and_one_usual_way_to_use_several_devices(framework: str) -> None:
    members = [chosen for chosen in strategies().values() if chosen.framework == framework]
    assert [chosen for chosen in members if chosen.family == "single"] == [baseline(framework)]
    usual = [chosen for chosen in members if chosen.traits.usual_on_several_devices]
    assert usual == [usual_on_several_devices(framework)]
    assert usual[0].family == "data"


def test_the_baseline_of_all_is_pytorch_on_one_worker() -> None:
    assert baseline("torch").name == BASELINE
