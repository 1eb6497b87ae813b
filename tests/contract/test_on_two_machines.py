"""Every strategy on two machines: it trains as on one, or refuses in words because its workers are one process."""

from collections.abc import Iterator

import pytest

from namespaces import machines, required_or_skipped
from paceline.fleet import parse_fleet
from paceline.plan import PlannedRun, complete, refusal
from paceline.record import Status
from paceline.runs.fleets import Machines, open_machines
from paceline.runs.launch import launch
from paceline.runs.launchers.local import LocalLauncher
from paceline.runs.probe import probe
from paceline.runs.starters import ForkServers
from paceline.spec import RunSpec
from paceline.strategies import Strategy, strategies, strategy
from paceline.systems import local_system

NAMES = ("left", "right")
STEPS = 6
pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]


def real() -> list[Strategy]:
    several = [each for each in strategies().values() if each.family not in ("fake", "single")]
    return [each for each in several if "cpu" in each.needs.devices]


@pytest.fixture(scope="module")
def reached() -> Iterator[Machines]:
    required_or_skipped()
    with machines(*NAMES) as network, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PACELINE_SSH", network.ssh)
        with open_machines(parse_fleet(f"ssh:{','.join(NAMES)}")) as opened:
            yield opened


def spec_of(chosen: Strategy, names: str = "") -> RunSpec:
    fields = {"strategy": chosen.name, "workers": 2, "global_batch": 64, "steps": STEPS, **chosen.testing.fields}
    return complete(RunSpec(**{**fields, "machines": names}))


@pytest.mark.parametrize(
    "chosen", [pytest.param(each, id=each.name, marks=getattr(pytest.mark, str(each.framework))) for each in real()]
)
def test_a_strategy_trains_on_two_machines_as_on_one(chosen: Strategy, reached: Machines, forking: ForkServers) -> None:
    spec = spec_of(chosen, reached.names)
    refused = refusal(spec, reached.system, probe)
    assert (refused is not None) == chosen.needs.one_machine, refused
    if refused is not None:
        assert "all its workers in one process, which cannot be on several machines" in refused
        return
    launcher = reached.launchers([spec, spec])[chosen.name]
    apart = launch(PlannedRun(spec, 0), "machines", reached.system, lambda _event: None, launcher=launcher)
    assert apart.status is Status.OK, f"{apart.reason}\n{apart.log_tail}"
    assert {rank.machine for rank in apart.ranks} == set(NAMES)
    here = LocalLauncher(forking.starter(strategy(chosen.name)))
    alone = spec_of(chosen)
    together = launch(PlannedRun(alone, 0), "machines", local_system(), lambda _event: None, launcher=here)
    assert together.status is Status.OK, together.reason
    assert len(apart.losses) == len(together.losses)
    if chosen.synchronous:
        assert apart.losses == pytest.approx(together.losses, rel=1e-3)
    else:
        # What comes first differs from run to run; what is learnt does not.
        assert apart.losses[-1] == pytest.approx(together.losses[-1], rel=0.3)
