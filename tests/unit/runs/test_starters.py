"""How the processes of a run are started."""

import os

from paceline.runs.starters import ForkServers, Starter, imports_of, split_environment
from paceline.strategies import strategy


def test_what_importing_took_is_known_until_the_servers_end():
    servers = ForkServers()
    server = servers.server(("decimal",), {**os.environ, "OPENBLAS_NUM_THREADS": "1"})
    assert server.wait_for_imports() is not None
    assert 0 < servers.cpu_seconds() < 60
    assert server.cpu_seconds() <= servers.cpu_seconds()
    servers.close()
    assert (server.cpu_seconds(), servers.cpu_seconds()) == (0.0, 0.0)


def test_processes_with_the_same_imports_and_environment_share_a_server():
    servers = ForkServers()
    try:
        first = servers.server(("decimal",), {"A": "1"})
        assert servers.server(("decimal",), {"A": "1"}) is first
        assert servers.server(("decimal",), {"A": "2"}) is not first
    finally:
        servers.close()


def test_fresh_processes_need_no_preparation_and_are_children_of_this_one():
    starter = Starter()
    starter.prepare([{}])
    assert starter.cpu_seconds() == 0.0


def test_variables_that_only_the_first_use_of_a_gpu_reads_may_come_after_the_fork():
    early, late = split_environment({"OMP_NUM_THREADS": "1", "NCCL_HOSTID": "slice-0", "CUDA_MPS_PIPE_DIRECTORY": "/x"})
    assert (early, set(late)) == ({"OMP_NUM_THREADS": "1"}, {"NCCL_HOSTID", "CUDA_MPS_PIPE_DIRECTORY"})


def test_a_strategy_without_a_framework_imports_only_what_it_needs():
    assert imports_of(strategy("fake")) == strategy("fake").needs.packages
    assert "torch" in imports_of(strategy("torch-ddp"))


def test_a_server_that_was_killed_is_replaced_and_one_that_cannot_import_is_not():
    servers, environment = ForkServers(), {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    try:
        first = servers.server(("decimal",), environment)
        assert first.wait_for_imports() is not None
        first.process.kill()
        first.process.wait()
        assert servers.server(("decimal",), environment) is not first
        broken = servers.server(("no_such_module",), environment)
        assert broken.wait_for_imports() is None
        broken.process.wait()
        assert servers.server(("no_such_module",), environment) is broken
    finally:
        servers.close()
