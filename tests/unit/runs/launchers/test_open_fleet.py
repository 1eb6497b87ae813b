"""What of each machine runs may use, which machines are refused, and which files are sent."""

from importlib import metadata
from types import SimpleNamespace

import pytest

from paceline.data import mnist
from paceline.errors import DataError, UserError
from paceline.fleet import Fleet, FleetMachine
from paceline.runs.agent.messages import FilePart, MachineFacts
from paceline.runs.launchers.open_fleet import OpenFleet, machines_of, refuse_unlike
from paceline.spec import ModelFile


def agent(number, name="", boot_id=None, **fields):
    facts = {
        "pid": 1, "host": name, "boot_id": boot_id or name, "address": f"10.0.0.{number + 1}", "interface": "eth0",
        "paceline": metadata.version("paceline"), "python": "3.11.7", "frameworks": {"torch": "2.9"}, "cpu": "EPYC",
        "cores": (0, 1), "memory_bytes": 1,
    }  # fmt: skip
    sent = []
    return SimpleNamespace(
        number=number, name=name, facts=MachineFacts(**{**facts, **fields}), sent=sent, send=sent.append
    )


def fleet(*agents):
    return Fleet(engine="ssh", machines=tuple(FleetMachine(name=each.name) for each in agents))


def test_equal_machines_are_taken():
    refuse_unlike([agent(0, "left"), agent(1, "right")])


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"python": "3.12.1"},
            "machine left has Python 3.11.7 and machine right Python 3.12.1; install the same on both",
        ),
        ({"frameworks": {"torch": "2.8"}}, "machine left has torch 2.9 and machine right torch 2.8; install the same"),
        ({"frameworks": {}}, "machine left has torch 2.9 and machine right no torch; install the same on both"),
        ({"paceline": "0.0.1"}, "machine right has Paceline 0.0.1 and this one "),
    ],
)
def test_unlike_versions_are_refused_in_words(fields, words):
    with pytest.raises(UserError) as refused:
        refuse_unlike([agent(0, "left"), agent(1, "right", **fields)])
    assert words in str(refused.value)


def test_machines_of_one_host_get_different_cores_and_others_all_of_theirs():
    agents = [agent(0, "left", "host"), agent(1, "right", "host"), agent(2, "far")]
    machines = machines_of(fleet(*agents), agents)
    assert [machine.cores for machine in machines] == [(0,), (1,), (0, 1)]
    assert [machine.place.address for machine in machines] == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    assert [machine.place.machine for machine in machines] == [0, 1, 2]


def test_cores_that_machines_of_one_host_share_count_once():
    agents = [agent(0, "left", "host"), agent(1, "right", "host"), agent(2, "third", "host"), agent(3, "far")]
    opened = open_fleet(*agents)
    opened.machines = machines_of(opened.fleet, agents)
    assert len(opened.system.cores) == 4
    assert opened.system.frameworks == {"torch": "2.9"}


def test_a_machine_that_only_it_can_reach_is_refused_among_others():
    agents = [agent(0, "left", address="127.0.0.1", interface="lo"), agent(1, "right")]
    with pytest.raises(
        UserError, match=r"machine left is known at 127\.0\.0\.1, which other machines cannot reach; give"
    ):
        machines_of(fleet(*agents), agents)
    assert machines_of(fleet(agents[0]), agents[:1])


@pytest.fixture
def data_here(tmp_path, monkeypatch):
    """The files of MNIST on this machine, or what stands for them."""
    for name in mnist.FILES:
        (tmp_path / name).write_bytes(name.encode())
    monkeypatch.setenv("PACELINE_DATA", str(tmp_path))
    return tmp_path


def open_fleet(*agents):
    opened = OpenFleet(fleet(*agents), engine=None)
    opened.agents = list(agents)
    return opened


def test_data_that_a_machine_lacks_is_sent_once(data_here, make_spec):
    lacking, having = agent(0, "left"), agent(1, "right", data={"mnist-5k": ""})
    opened = open_fleet(lacking, having)
    for _ in range(2):
        opened.send_files(make_spec(dataset="mnist"), [lacking])
        opened.send_files(make_spec(dataset="mnist-5k"), [having])
    assert [part.name for part in lacking.sent] == [f"data/{name}" for name in mnist.FILES]
    assert having.sent == []


def test_other_data_under_the_same_name_is_refused(data_here, make_spec):
    with pytest.raises(DataError, match="data set mnist on machine left is not that of this machine"):
        other = agent(0, "left", data={"mnist": "another digest"})
        open_fleet(other).send_files(make_spec(dataset="mnist"), [other])


def test_a_model_is_sent_under_its_digest_with_its_neighbours(tmp_path, make_spec):
    (tmp_path / "mine.py").write_text("import beside\ndef build(): ...")
    (tmp_path / "beside.py").write_text("")
    model, there = ModelFile.from_text(str(tmp_path / "mine.py")), agent(0, "left")
    open_fleet(there).send_files(make_spec(model=model), [there])
    assert all(isinstance(part, FilePart) for part in there.sent)
    assert sorted(part.name for part in there.sent) == [
        f"models/{model.digest}/beside.py", f"models/{model.digest}/mine.py",
    ]  # fmt: skip
