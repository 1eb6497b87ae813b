"""A process that joined runs what its own command line says and takes no other orders."""

from pathlib import Path

import pytest

from paceline.errors import UserError
from paceline.plan import complete
from paceline.runs.agent.channel import Channel
from paceline.runs.agent.messages import FilePart, ListenForLink, RunCommand, Welcome
from paceline.runs.joined.member import MemberSession, identity
from paceline.spec import ModelFile


@pytest.fixture
def spec(make_spec):
    return complete(make_spec(workers=2))


@pytest.fixture
def session(spec, tmp_path):
    welcome = Welcome(machine=1, name="here", lease_seconds=5.0, environment={"LD_PRELOAD": "/evil.so"})
    return MemberSession(Channel(-1, -1), welcome, tmp_path, runs={identity(spec): spec})


@pytest.mark.parametrize(
    "order",
    [
        RunCommand(words=("calibrate",), file="x"),
        FilePart(name="models/x.py", data=b"", first=True, last=True),
        ListenForLink(),
    ],
)
def test_orders_that_are_not_of_its_run_are_refused(session, order, tmp_path):
    with pytest.raises(UserError, match="a process that joined does not take a message"):
        session.obey(order)
    assert list(tmp_path.iterdir()) == []


def test_variables_from_the_network_are_not_set(session):
    assert session.environment() == {}


def test_only_a_run_of_its_own_command_line_is_run(session, spec):
    asked_for = spec.model_copy(update={"machines": "a*2", "instrumented": True})
    assert session.on_this_machine(asked_for) == asked_for
    with pytest.raises(UserError, match="rank 0 wants to run fake x2, which is not what this process was started with"):
        session.on_this_machine(spec.model_copy(update={"seed": 7}))


def test_its_own_model_file_is_used_wherever_the_others_have_theirs(spec, tmp_path):
    def with_model(path: Path):
        return spec.model_copy(update={"model": ModelFile(path=path, digest="0" * 16)})

    here, there = with_model(tmp_path / "mine.py"), with_model(Path("/elsewhere/mine.py"))
    welcome = Welcome(machine=1, name="here", lease_seconds=5.0)
    session = MemberSession(Channel(-1, -1), welcome, tmp_path, runs={identity(here): here})
    assert session.on_this_machine(there).model == here.model
