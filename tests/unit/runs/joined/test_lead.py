"""How many workers a job of so many processes has, and what each of its processes may use."""

from types import SimpleNamespace

import pytest

from paceline.errors import UserError
from paceline.runs.joined import Membership
from paceline.runs.joined.lead import addresses_for_others, machines_of_processes, sized, specs_of
from paceline.runs.placement import lay_out_one_each
from paceline.study import Study


def job(world):
    return Membership("torchrun", 0, world, "job")


def study(**fields):
    return Study(name="joined", fixed={"global_batch": 64, "steps": 2, **fields})


@pytest.mark.parametrize(
    ("strategy", "world", "workers"),
    [("torch-ddp", 3, 3), ("jax-data", 2, 2), ("torch-downpour", 3, 2), ("tf-mirrored", 1, 1), ("torch-mesh", 4, 4)],
)
def test_as_many_workers_as_make_one_process_of_each(strategy, world, workers):
    (spec,) = specs_of(sized(study(strategy=strategy), job(world)), job(world))
    assert spec.workers == workers


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"strategy": "torch-ddp", "workers": 3}, "torch-ddp x3 has 3 processes, and torchrun started 2; start 3"),
        ({"strategy": "torch-mesh", "layout": "shard=4"}, "torch-mesh shard=4 has 4 processes, and torchrun started 2"),
        ({"strategy": "tf-mirrored"}, "tf-mirrored has all its workers in one process, and torchrun started 2"),
    ],
)
def test_another_number_of_processes_is_refused_in_words(fields, words):
    with pytest.raises(UserError) as refused:
        sized(study(**fields), job(2))
    assert words in str(refused.value)


def process(number, host="a", cores=(0, 1), gpus=(), ends=("127.0.0.1", "127.0.0.1"), interface=None):
    facts = SimpleNamespace(boot_id=host, cores=cores, gpus=gpus, address="10.0.0.1", interface="eth0")
    machine = SimpleNamespace(interface=interface)
    return SimpleNamespace(number=number, name=host, facts=facts, machine=machine, channel=ends)


def test_processes_that_were_given_the_same_cores_share_them_out():
    together = machines_of_processes([process(0), process(1), process(2, host="b")])
    assert [machine.cores for machine in together] == [(0,), (1,), (0, 1)]


def test_cores_that_a_launcher_gave_to_one_process_stay_its_own():
    bound = machines_of_processes([process(0, cores=(2, 3)), process(1, cores=(4, 5))])
    assert [machine.cores for machine in bound] == [(2, 3), (4, 5)]


def test_gpus_are_shared_out_among_the_processes_that_see_the_same():
    shared = machines_of_processes([process(number, gpus=("h100", "h100")) for number in range(2)])
    assert [machine.gpus for machine in shared] == [(0,), (1,)]


def test_each_process_of_the_job_holds_one_of_the_run(make_spec):
    machines = machines_of_processes([process(0, cores=tuple(range(8))), process(1, cores=tuple(range(8)))])
    layout = lay_out_one_each(make_spec(workers=2, cores_per_worker=2), machines)
    assert [(each.rank, each.world, each.index, each.cores, each.place.machine) for each in layout] == [
        (0, 2, 0, (0, 1), 0),
        (1, 2, 1, (4, 5), 1),
    ]


def test_a_process_beside_the_first_is_known_to_others_by_the_address_that_they_reached(monkeypatch):
    monkeypatch.setattr("paceline.runs.joined.lead.ends_of", lambda channel: channel)
    near, far = process(0), process(1, ends=("10.0.0.1", "10.0.0.2"))
    assert addresses_for_others([near, far]) == ["10.0.0.1", "10.0.0.2"]
    assert addresses_for_others([near, process(1)]) == ["127.0.0.1", "127.0.0.1"]
    assert addresses_for_others([process(0, interface="ib0"), far]) == [None, "10.0.0.2"]
