"""What `--on` takes, and what is wrong with what it does not take."""

import pytest

from paceline.errors import SpecError
from paceline.fleet import LEASE_SECONDS, LOCAL, SlurmRequest, parse_fleet


@pytest.mark.parametrize("text", [None, "local"])
def test_without_a_word_it_is_this_machine(text):
    assert parse_fleet(text) == LOCAL
    assert LOCAL.names == ()


def test_hosts_of_ssh_are_named_without_their_user():
    fleet = parse_fleet("ssh:me@one.example,two")
    assert (fleet.engine, fleet.names) == ("ssh", ("one.example", "two"))
    assert [machine.reached_at for machine in fleet.machines] == ["me@one.example", "two"]
    assert fleet.lease_seconds == LEASE_SECONDS


def test_a_hosts_file_has_one_machine_in_a_line(tmp_path):
    file = tmp_path / "hosts"
    file.write_text("# ours\none slots=2\n\n  two # slow\n")
    assert parse_fleet(f"ssh:@{file}").names == ("one", "two")


def test_a_fleet_file_says_what_a_machine_cannot(tmp_path):
    file = tmp_path / "fleet.toml"
    file.write_text(
        'python = "/opt/python"\nranks = "spread"\nlease_seconds = 9\n'
        '[[machines]]\nname = "left"\nhost = "me@left"\naddress = "10.0.0.1"\ninterface = "eth1"\ncores = 4\n'
        "port = 2222\n"
        'identity = "~/.ssh/key"\nssh_options = ["-4"]\nenvironment = {PACELINE_DATA = "/data"}\n'
        '[[machines]]\nname = "right"\npython = "/usr/bin/python3"\ngpus = 1\n'
    )
    fleet = parse_fleet(str(file))
    left, right = fleet.machines
    assert (fleet.engine, fleet.ranks, fleet.lease_seconds) == ("ssh", "spread", 9.0)
    assert (left.python, left.address, left.interface, left.cores, left.port) == (
        "/opt/python", "10.0.0.1", "eth1", 4, 2222,
    )  # fmt: skip
    assert left.environment == {"PACELINE_DATA": "/data"}
    assert (right.python, right.gpus, right.reached_at) == ("/usr/bin/python3", 1, "right")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("shh:one", "--on 'shh:one' is no fleet (did you mean 'ssh'?); use local, ssh:HOST,HOST"),
        ("ssh:", "is not usable"),
        ("ssh:one,one", "machine 'one' is named twice; give each machine a name of its own"),
        ("ssh:-oProxyCommand=sh", "host '-oProxyCommand=sh' begins with a dash; name a machine"),
        ("slurm:nodes", "--on slurm:nodes: 'nodes' is no setting; write such as slurm:nodes=3,partition=NAME"),
        ("slurm:node=3", "there is no field 'slurm.node'; did you mean 'nodes'?"),
        ("slurm:time=soon", "slurm.time 'soon' is not usable"),
        ("slurmm", "--on 'slurmm' is no fleet (did you mean 'slurm'?)"),
        ("ssh:@/nowhere/hosts", "hosts file /nowhere/hosts cannot be read"),
        ("/nowhere/fleet.toml", "fleet file /nowhere/fleet.toml cannot be read: No such file"),
    ],
)
def test_what_is_no_fleet_is_refused_in_words(text, words):
    with pytest.raises(SpecError) as refused:
        parse_fleet(text)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("machines = [", "is no TOML"),
        ('engine = "ssh"', "engine ssh needs machines; name at least one"),
        ('engine = "local"\n[[machines]]\nname = "a"', "engine local is this machine alone"),
        ('[[machines]]\nname = "a"\ncore = 2', "there is no field 'machines.0.core'; did you mean 'cores'?"),
        ('[[machines]]\nname = "a"\ncores = 0', "machines.0.cores 0 is out of range; it must be at least 1"),
        (
            'engine = "telnet"\n[[machines]]\nname = "a"',
            "engine cannot be 'telnet'; choose from local, ssh, slurm, ray",
        ),
        ('engine = "joined"', "engine cannot be 'joined'; choose from local, ssh, slurm, ray"),
        ('engine = "slurm"\n[[machines]]\nname = "a"', "engine slurm says itself which machines there are"),
        ('engine = "ray"\n[slurm]\nnodes = 2', "slurm has settings and the engine is ray; leave one of them out"),
        ('engine = "slurm"\n[slurm]\nnodes = 0', "slurm.nodes 0 is out of range; it must be at least 1"),
    ],
)
def test_a_fleet_file_that_is_wrong_is_refused_in_words(tmp_path, text, words):
    file = tmp_path / "fleet.toml"
    file.write_text(text)
    with pytest.raises(SpecError) as refused:
        parse_fleet(str(file))
    assert words in str(refused.value)


def test_slurm_is_an_allocation_at_hand_or_what_one_is_asked_for():
    assert (parse_fleet("slurm").engine, parse_fleet("slurm").slurm) == ("slurm", SlurmRequest())
    asked = parse_fleet("slurm:partition=gpu,nodes=3,time=1-00:30:00").slurm
    assert (asked.partition, asked.nodes, asked.time) == ("gpu", 3, "1-00:30:00")


@pytest.mark.parametrize(
    ("text", "address"), [("ray", "auto"), ("ray:10.0.0.1:6379", "10.0.0.1:6379"), ("ray:ray://head:10001", "ray://head:10001")]
)  # fmt: skip
def test_ray_is_the_cluster_at_hand_or_the_one_at_an_address(text, address):
    fleet = parse_fleet(text)
    assert (fleet.engine, fleet.ray.address) == ("ray", address)


def test_a_fleet_file_says_what_machines_of_slurm_have_in_common(tmp_path):
    file = tmp_path / "fleet.toml"
    file.write_text('engine = "slurm"\npython = "/opt/python"\ninterface = "ib0"\n[slurm]\noptions = ["--exclusive"]\n')
    fleet = parse_fleet(str(file))
    assert (fleet.slurm.options, fleet.about) == (("--exclusive",), "the machines of Slurm")
    named = fleet.of_machines("a", "b")
    assert named.names == ("a", "b")
    assert {(machine.python, machine.interface) for machine in named.machines} == {("/opt/python", "ib0")}
