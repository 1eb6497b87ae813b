"""The usual run of every strategy, which other contract tests look at too: how it ends, and what it holds."""

import re
from typing import Any

import pytest

from contract.test_asynchronous_strategies_learn import FIELDS
from paceline.contract.context import spec_facts
from paceline.spec import RunSpec
from paceline.strategies import Strategy, strategies

UNCLEAN = re.compile(r"terminate called|leaked|resource_tracker|Traceback|SIGABRT|core dumped|Fatal Python error", re.I)
EVERY = [
    pytest.param(chosen, id=chosen.name, marks=getattr(pytest.mark, chosen.framework))
    for chosen in strategies().values()
    if chosen.framework is not None
]


def usual(chosen: Strategy, trained: Any) -> Any:
    fields = {"workers": chosen.needs.fixed_workers or 2, **chosen.testing.fields} if chosen.synchronous else FIELDS
    return trained("mnist-small", strategy=chosen.name, **fields)


@pytest.mark.parametrize("chosen", EVERY)
def test_it_ends_without_a_word_of_what_broke_after_its_work(chosen: Strategy, trained: Any) -> None:
    log = usual(chosen, trained).log
    assert not UNCLEAN.search(log), log


def per_process(chosen: Strategy, spec: RunSpec) -> list[tuple[float, float]]:
    """Parameter and optimizer bytes of each process: the sum over the workers that it drives."""
    ranks = iter(
        (group.parameter_bytes, group.optimizer_bytes)
        for group in chosen.footprint(spec, spec_facts(spec)).groups
        for _ in range(group.ranks)
    )
    each = [role.workers_each for role in chosen.needs.roles(spec) for _ in range(role.processes)]
    shares = [[next(ranks) for _ in range(workers)] for workers in each]
    return [(sum(share[0] for share in mine), sum(share[1] for share in mine)) for mine in shares]


@pytest.mark.parametrize("chosen", EVERY)
def test_bytes_held_are_exactly_those_of_the_tensors(chosen: Strategy, trained: Any) -> None:
    record = usual(chosen, trained).record
    promised = per_process(chosen, record.spec)
    held = [rank.details["held_bytes"] for rank in record.ranks]
    assert [(part["parameters"], part["optimizer"]) for part in held] == promised
