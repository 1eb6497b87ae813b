"""What a process on a slice of a GPU tells NCCL, and what it notes for the record."""

import os

import pytest

from paceline.contract.context import Context, Process, Rendezvous
from paceline.frameworks import slices
from paceline.frameworks.slices import open_slice_link


@pytest.fixture
def open_link(make_spec, monkeypatch):
    """Opens the link of a process that has this NCCL, and gives its notes and NCCL's variables."""

    def opened(nccl, world=2, set_by_user=None, **fields):
        for name in [name for name in os.environ if name.startswith("NCCL_")]:
            monkeypatch.delenv(name)
        environment = {**os.environ, **(set_by_user or {})}
        monkeypatch.setattr(os, "environ", environment)
        monkeypatch.setattr(slices, "loaded_nccl", lambda: nccl)
        monkeypatch.setattr(slices, "slice_multiprocessors", lambda: 32)
        spec = make_spec(**{"device": "cuda-slice", "slices": 4, "workers": world, **fields})
        context = Context(spec, Process(1, world, "worker", 1, (0,)), Rendezvous("127.0.0.1", 1))
        open_slice_link(context)
        return context.notes, {name: value for name, value in environment.items() if name.startswith("NCCL_")}

    return opened


def test_a_new_nccl_talks_through_the_memory_of_the_gpu_and_the_record_says_so(open_link):
    notes, variables = open_link((2, 32, 3))
    assert (notes["nccl_version"], notes["slice_transport"]) == ("2.32.3", "p2p")
    assert variables["NCCL_MULTI_RANK_GPU_ENABLE"] == "1"
    assert variables["NCCL_MAX_NCHANNELS"] == variables["NCCL_MAX_CTAS"] == "4"


@pytest.mark.parametrize(("nccl", "fields"), [((2, 28, 9), {}), ((2, 32, 3), {"transport": "socket"})])
def test_an_old_nccl_or_a_wish_for_sockets_makes_a_host_of_each_rank(open_link, nccl, fields):
    notes, variables = open_link(nccl, **fields)
    assert notes["slice_transport"] == "socket"
    assert variables == {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", "NCCL_HOSTID": "slice-1"}


def test_channels_that_the_user_has_set_stay(open_link):
    _, variables = open_link((2, 32, 3), set_by_user={"NCCL_MAX_NCHANNELS": "2"})
    assert (variables["NCCL_MAX_NCHANNELS"], variables["NCCL_MAX_CTAS"]) == ("2", "4")


def test_a_worker_alone_has_no_link(open_link):
    notes, _ = open_link((2, 32, 3), world=1)
    assert notes == {"nccl_version": "2.32.3"}


def test_other_devices_are_left_alone(open_link):
    assert open_link((2, 32, 3), device="cuda", slices=None) == ({}, {})
