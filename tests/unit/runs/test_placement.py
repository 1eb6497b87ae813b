"""Which machine each process of a run is on."""

import pytest

from paceline.contract.context import Place
from paceline.runs.placement import Machine, lay_out_over, shares_of_hosts


def machine(number, cores, gpus=()):
    return Machine(Place(number, f"m{number}", f"10.0.0.{number + 1}", "eth0"), tuple(cores), tuple(gpus))


def where(processes):
    return [(process.place.machine, process.cores) for process in processes]


def test_machines_are_filled_one_after_another_so_that_neighbours_share_one(make_spec):
    machines = [machine(0, (0, 1)), machine(1, (0, 1, 2))]
    processes = lay_out_over(make_spec(workers=4), machines)
    assert where(processes) == [(0, (0,)), (0, (1,)), (1, (0,)), (1, (1,))]
    assert [process.place.address for process in processes] == ["10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.2"]
    assert [(process.rank, process.world, process.index) for process in processes] == [
        (0, 4, 0), (1, 4, 1), (2, 4, 2), (3, 4, 3),
    ]  # fmt: skip


def test_workers_of_several_cores_are_not_cut_in_two(make_spec):
    machines = [machine(0, (0, 1, 2)), machine(1, (4, 5))]
    assert where(lay_out_over(make_spec(workers=2, cores_per_worker=2), machines)) == [(0, (0, 1)), (1, (4, 5))]


def test_spread_over_machines_each_has_an_equal_share(make_spec):
    machines = [machine(0, range(8)), machine(1, range(8))]
    assert where(lay_out_over(make_spec(workers=4), machines, spread=True)) == [
        (0, (0,)), (0, (1,)), (1, (0,)), (1, (1,)),
    ]  # fmt: skip


def test_with_too_few_cores_everywhere_it_starts_again_with_the_first_machine(make_spec):
    machines = [machine(0, (0,)), machine(1, (0,))]
    assert where(lay_out_over(make_spec(workers=3), machines)) == [(0, (0,)), (1, (0,)), (0, (0,))]


def test_gpus_are_counted_on_each_machine(make_spec):
    machines = [machine(0, range(4), (0, 1)), machine(1, range(8), (0, 1))]
    processes = lay_out_over(make_spec(workers=4, device="cuda"), machines)
    assert [(process.place.machine, process.device) for process in processes] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [len(process.cores) for process in processes] == [2, 2, 4, 4]


def test_a_machine_without_room_is_passed_over(make_spec):
    laptop, one, two = machine(0, range(4)), machine(1, range(4), (0,)), machine(2, range(4), (0, 1))
    processes = lay_out_over(make_spec(workers=3, device="cuda"), [laptop, one, two])
    assert [(process.place.machine, process.device) for process in processes] == [(1, 0), (2, 0), (2, 1)]
    # One more shares a GPU with the first.
    processes = lay_out_over(make_spec(workers=4, device="cuda"), [laptop, one, two])
    assert [(process.place.machine, process.device) for process in processes][3:] == [(1, 0)]
    narrow, wide = machine(0, (0,)), machine(1, (0, 1, 2, 3))
    assert where(lay_out_over(make_spec(workers=2, cores_per_worker=2), [narrow, wide])) == [(1, (0, 1)), (1, (2, 3))]
    # Where none has room for even one, each takes one as well as it can.
    assert where(lay_out_over(make_spec(workers=2, cores_per_worker=8), [narrow, narrow])) == [(0, (0,)), (0, (0,))]


def test_spread_over_unlike_machines_what_is_left_goes_where_there_is_room(make_spec):
    machines = [machine(0, (0,)), machine(1, range(8))]
    assert where(lay_out_over(make_spec(workers=4), machines, spread=True)) == [
        (0, (0,)), (1, (0,)), (1, (1,)), (1, (2,)),
    ]  # fmt: skip


def test_servers_need_no_gpu_and_stay_beside_the_last_worker(make_spec):
    machines = [machine(0, range(4), (0,)), machine(1, range(4), (0,))]
    processes = lay_out_over(make_spec(strategy="torch-ps-sync", workers=2, device="cuda"), machines)
    assert [(process.role, process.place.machine) for process in processes] == [
        ("worker", 0), ("worker", 1), ("server", 1),
    ]  # fmt: skip


def test_machines_that_are_one_host_get_different_cores():
    cores = tuple(range(5))
    assert shares_of_hosts(["a", "a", "b"], [cores, cores, (0, 1)], [None] * 3, alone=True) == [
        (0, 1), (2, 3, 4), (0, 1),
    ]  # fmt: skip


def test_a_fleet_may_allow_less_than_there_is():
    assert shares_of_hosts(["a", "b"], [(0, 1, 2), (0, 1)], [2, 8], alone=True) == [(0, 1), (0, 1)]


def test_more_machines_than_cores_share_them_in_turn():
    assert shares_of_hosts(["a"] * 3, [(0, 1)] * 3, [None] * 3, alone=True) == [(0,), (1,), (0,)]


@pytest.mark.parametrize("gpus", [(), (0,)])
def test_no_machine_gets_a_gpu_that_is_not_there(gpus):
    shares = shares_of_hosts(["a", "a"], [gpus, gpus], [None, None], alone=False)
    assert sum(len(share) for share in shares) == len(gpus)
