"""What every strategy must say of itself, checked without running it."""

import re

import pytest

from paceline.contract.context import spec_facts
from paceline.spec import RunSpec
from paceline.strategies import Strategy, strategies, strategy

EVERY = [pytest.param(chosen, id=chosen.name) for chosen in strategies().values()]


def spec_for(chosen: Strategy, workers: int) -> RunSpec:
    return RunSpec(
        strategy=chosen.name,
        workers=chosen.needs.fixed_workers or workers,
        global_batch=64,
        epochs=1,
        dataset="mnist-5k",
    )


@pytest.mark.parametrize("chosen", EVERY)
def test_its_name_is_framework_and_method(chosen: Strategy) -> None:
    assert re.fullmatch(r"[a-z]+(-[a-z0-9]+)*", chosen.name)
    assert strategy(chosen.name) is chosen


@pytest.mark.parametrize("chosen", EVERY)
def test_it_says_what_it_does_and_when_to_use_it(chosen: Strategy) -> None:
    assert 10 < len(chosen.about) < 100
    assert 10 < len(chosen.use_when) < 120
    assert all(knob.about and (not knob.choices or knob.default in knob.choices) for knob in chosen.knobs)


@pytest.mark.parametrize("chosen", EVERY)
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_its_footprint_counts_the_model(chosen: Strategy, workers: int) -> None:
    spec = spec_for(chosen, workers)
    facts = spec_facts(spec)
    footprint = chosen.footprint(spec, facts)
    assert footprint.ranks == sum(role.processes * role.workers_each for role in chosen.needs.roles(spec))
    assert all(0 <= group.parameter_bytes <= facts.parameter_bytes for group in footprint.groups)
    assert sum(group.parameter_bytes * group.ranks for group in footprint.groups) >= facts.parameter_bytes
    assert sum(group.flops * group.ranks for group in footprint.groups) > 0
    assert (footprint.sent_bytes > 0) == (footprint.ranks > 1)


@pytest.mark.parametrize("chosen", EVERY)
@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_all_that_its_footprint_sends_is_received(chosen: Strategy, workers: int) -> None:
    spec = spec_for(chosen, workers)
    groups = chosen.footprint(spec, spec_facts(spec)).groups
    received = sum(group.received_bytes * group.ranks for group in groups)
    assert received == pytest.approx(sum(group.sent_bytes * group.ranks for group in groups))


@pytest.mark.parametrize("chosen", EVERY)
def test_it_lays_out_at_least_one_process_per_role(chosen: Strategy) -> None:
    roles = chosen.needs.roles(spec_for(chosen, 2))
    assert roles
    assert all(role.processes >= 1 and role.workers_each >= 1 for role in roles)


def test_a_ring_all_reduce_of_the_small_model_on_four_workers_sends_six_quarters_of_its_gradients() -> None:
    spec = RunSpec(strategy="torch-ddp", workers=4, global_batch=64, epochs=1, dataset="mnist-5k")
    assert strategy("torch-ddp").footprint(spec, spec_facts(spec)).groups[0].sent_bytes == 402_442 * 4 * 6 / 4
