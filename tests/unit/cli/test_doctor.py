"""What `paceline doctor` says of the link between slices of a GPU."""

from dataclasses import replace

import pytest

from paceline.cli import doctor
from paceline.cli.doctor import slice_links
from paceline.systems.links import LinkMeans


@pytest.fixture
def with_nccl(monkeypatch, make_system):
    """What the doctor says of slices where frameworks load this NCCL."""

    def lines(version, frameworks=("torch",)):
        monkeypatch.setattr(doctor, "nccl_of", lambda _framework: version)
        return slice_links(make_system(gpus=1, frameworks=frameworks))

    return lines


def test_a_new_nccl_is_a_fast_link(with_nccl):
    [(there, what, state, why)] = with_nccl((2, 32, 3))
    assert (there, what, state) == (True, "link of slices", "with torch: fast, through the GPU's memory")
    assert why == "NCCL 2.32.3 takes several ranks on one GPU"


def test_an_old_nccl_is_a_slow_link_with_a_way_to_a_fast_one(with_nccl):
    [(there, _, state, advice)] = with_nccl((2, 28, 9))
    assert (there, state) == (False, "with torch: slow, over loopback sockets")
    assert advice.startswith("NCCL 2.28.9 takes one rank on a GPU, and 2.30 or newer several: pip install ")
    assert "LD_PRELOAD=NCCL_DIR/nvidia/nccl/lib/libnccl.so.2 paceline run" in advice


def test_every_framework_that_trains_on_slices_is_told(with_nccl):
    lines = with_nccl((2, 32, 3), frameworks=("torch", "tensorflow", "jax"))
    assert [state.split(":")[0] for _, _, state, _ in lines] == ["with torch", "with jax"]


def test_no_link_is_looked_for_where_no_gpu_can_be_cut(monkeypatch, make_system):
    def fail(_framework):
        raise AssertionError("nobody asked")

    monkeypatch.setattr(doctor, "nccl_of", fail)
    assert slice_links(replace(make_system(), no_slices="this machine has no CUDA device")) == []


@pytest.mark.parametrize(
    ("means", "line"),
    [
        ("links need root", (False, "links", "not here", "links need root")),
        (
            LinkMeans(False, kernel_delays=True, relay_delays=True),
            (True, "links", "--link RATE[:DELAY], as root; delays by the kernel's netem", ""),
        ),
        (
            LinkMeans(False, kernel_delays=False, relay_delays=True),
            (True, "links", "--link RATE[:DELAY], as root; delays by a relay, the kernel has no netem", ""),
        ),
        (
            LinkMeans(True, kernel_delays=False, relay_delays=False),
            (
                True, "links", "--link RATE, as root of a user namespace; no delays",
                "delays need the kernel's netem (module sch_netem) or the right to open /dev/net/tun",
            ),
        ),
    ],
)  # fmt: skip
def test_links_are_there_with_delays_without_or_not_at_all(monkeypatch, means, line):
    monkeypatch.setattr(doctor, "link_means", lambda: means)
    assert doctor.network_links() == [line]
