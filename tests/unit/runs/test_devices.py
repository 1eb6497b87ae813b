"""Which cores each process gets, and the environment it starts in."""

import os
import subprocess
import sys

import pytest

from paceline.contract.context import Place, Process
from paceline.contract.strategy import Role
from paceline.runs.devices import TUNED_ALLOCATOR, lay_out, oversubscription, process_environment

PIN = """
import os, sys
from paceline.runs.devices import pin
from paceline.contract.context import Place, Process
pin(Process(0, 1, "worker", 0, (int(sys.argv[1]),)))
print(sorted(os.sched_getaffinity(0)))
"""


def workers(count, each=1):
    return (Role("worker", count, each),)


def cores_of(processes):
    return [process.cores for process in processes]


def test_processes_are_numbered_over_all_roles_and_within_their_own():
    processes = lay_out((Role("server", 1), Role("worker", 2)), (0, 1, 2, 3), 1)
    assert [(p.rank, p.world, p.role, p.index) for p in processes] == [
        (0, 3, "server", 0),
        (1, 3, "worker", 0),
        (2, 3, "worker", 1),
    ]


def test_every_worker_gets_cores_of_its_own():
    assert cores_of(lay_out(workers(2), (4, 5, 6, 7), 2)) == [(4, 5), (6, 7)]


def test_cores_left_over_stay_free():
    assert cores_of(lay_out(workers(2), (0, 1, 2, 3), 1)) == [(0,), (1,)]


def test_with_too_few_cores_they_are_dealt_again():
    assert cores_of(lay_out(workers(4), (0, 1), 1)) == [(0,), (1,), (0,), (1,)]


def test_a_process_that_drives_several_workers_gets_the_cores_of_all():
    assert cores_of(lay_out(workers(1, each=3), (0, 1, 2, 3), 1)) == [(0, 1, 2)]


def test_no_process_gets_more_cores_than_there_are():
    assert cores_of(lay_out(workers(2), (0, 1), 8)) == [(0, 1), (0, 1)]


def test_enough_cores_are_no_finding(make_spec):
    assert oversubscription(workers(2), (0, 1), make_spec(workers=2)) is None


def test_more_workers_than_cores_are_a_finding_with_both_numbers_and_a_hint(make_spec):
    finding = oversubscription(workers(4), (0, 1), make_spec(workers=4))
    assert finding.code == "oversubscribed"
    assert finding.text == "4 workers of 1 core each want 4 cores; this machine has 2"
    assert "oversubscribed machine" in finding.hint
    assert "scaling efficiency leaves them out" in finding.hint


def test_cores_per_worker_and_every_role_count(make_spec):
    roles = (Role("server", 1), Role("worker", 2))
    finding = oversubscription(roles, (0, 1, 2, 3), make_spec(workers=2, cores_per_worker=2))
    assert finding.text == "1 server and 2 workers of 2 cores each want 6 cores; this machine has 4"


def test_on_a_gpu_the_cores_are_not_what_is_short(make_spec):
    assert oversubscription(workers(4), (0, 1), make_spec(workers=4, device="cuda")) is None


def test_thread_pools_are_as_large_as_the_cores_of_the_process(make_spec):
    env = process_environment(make_spec(), Process(0, 1, "worker", 0, (2, 3, 4)), {"OMP_NUM_THREADS": "64"})
    pools = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
    assert {env[pool] for pool in pools} == {"3"}


@pytest.mark.parametrize("name", ["MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE", "TF_CONFIG"])
def test_what_another_launcher_left_in_the_shell_is_not_passed_on(make_spec, name):
    assert name not in process_environment(make_spec(), Process(0, 1, "worker", 0, (0,)), {name: "1"})


def test_the_rest_of_the_environment_is_passed_on(make_spec):
    env = process_environment(make_spec(), Process(0, 1, "worker", 0, (0,)), {"PACELINE_DATA": "here"})
    assert env["PACELINE_DATA"] == "here"


def test_the_allocator_is_tuned_unless_the_default_is_asked_for(make_spec):
    process = Process(0, 1, "worker", 0, (0,))
    assert process_environment(make_spec(), process, {}).items() >= TUNED_ALLOCATOR.items()
    plain = process_environment(make_spec(allocator="default"), process, {})
    assert not plain.keys() & TUNED_ALLOCATOR.keys()


def test_a_run_on_cores_sees_no_gpu_and_one_on_gpus_sees_what_the_shell_allows(make_spec):
    process, shell = Process(0, 1, "worker", 0, (0,)), {"CUDA_VISIBLE_DEVICES": "1"}
    assert process_environment(make_spec(), process, shell)["CUDA_VISIBLE_DEVICES"] == ""
    assert process_environment(make_spec(device="cuda"), process, shell)["CUDA_VISIBLE_DEVICES"] == "1"


def test_a_process_is_bound_to_its_cores(child_environment):
    core = max(os.sched_getaffinity(0))
    pinned = subprocess.run(
        [sys.executable, "-c", PIN, str(core)], env=child_environment, capture_output=True, text=True, check=True
    )
    assert pinned.stdout.strip() == f"[{core}]"


def test_libraries_are_told_the_interface_of_the_process_and_a_users_own_choice_of_nccl_stays(make_spec):
    process = Process(0, 2, "worker", 0, (0,), place=Place(1, "second", "10.0.0.2", "eth1"))
    env = process_environment(make_spec(), process, {})
    assert (env["GLOO_SOCKET_IFNAME"], env["NCCL_SOCKET_IFNAME"]) == ("eth1", "eth1")
    assert process_environment(make_spec(), process, {"NCCL_SOCKET_IFNAME": "ib0"})["NCCL_SOCKET_IFNAME"] == "ib0"


def test_processes_of_one_machine_talk_over_loopback(make_spec):
    env = process_environment(make_spec(), Process(0, 1, "worker", 0, (0,)), {})
    assert env["GLOO_SOCKET_IFNAME"] == "lo"
    assert "NCCL_SOCKET_IFNAME" not in env


def test_devices_are_counted_within_their_role():
    assert [process.device for process in lay_out((Role("worker", 2), Role("server", 1)), (0, 1), 1)] == [0, 1, 0]
    assert [process.device for process in lay_out(workers(2, each=2), (0, 1), 1)] == [0, 2]
