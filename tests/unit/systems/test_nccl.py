"""How slices of one GPU talk, decided from the NCCL that a process has loaded."""

import os
import subprocess
import sys

import pytest

from paceline.systems import nccl
from paceline.systems.nccl import (
    BOUNDS,
    SliceLink,
    channels,
    loaded_nccl,
    nccl_of,
    parse_version,
    slice_link,
    slice_multiprocessors,
)

LIBRARY = "int ncclGetVersion(int *version) {{ *version = {number}; return 0; }}\n"


@pytest.fixture
def make_library(tmp_path):
    """Builds a library that gives itself out for an NCCL of some version."""

    def make(number):
        source, library = tmp_path / "nccl.c", tmp_path / nccl.LIBRARY
        source.write_text(LIBRARY.format(number=number))
        built = subprocess.run(
            ["cc", "-shared", "-fPIC", f"-Wl,-soname,{nccl.LIBRARY}", "-o", str(library), str(source)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if built.returncode:
            pytest.skip(f"no C compiler to build a library with: {built.stderr}")
        return library

    return make


@pytest.fixture
def own_process(monkeypatch, child_environment):
    monkeypatch.setenv("PYTHONPATH", child_environment["PYTHONPATH"])


@pytest.mark.parametrize(
    ("version", "transport"),
    [((2, 30, 0), "p2p"), ((2, 32, 3), "p2p"), ((3, 0, 0), "p2p"), ((2, 29, 7), "socket"), ((2, 8, 4), "socket")],
)
def test_slices_talk_through_the_gpu_from_nccl_2_30_on(version, transport):
    assert slice_link(version, "auto").transport == transport


def test_a_slow_link_says_why_it_is_slow():
    assert slice_link((2, 28, 9), "auto").reason == "NCCL 2.28.9 takes one rank on a GPU, and 2.30 or newer several"
    assert slice_link(None, "auto") == SliceLink("socket", "no NCCL was found")


def test_sockets_that_were_asked_for_are_used_whatever_the_version():
    assert slice_link((2, 32, 3), "socket") == SliceLink("socket", "transport socket was asked for")


def test_ranks_of_a_fast_link_are_on_one_host_with_bounded_channels():
    env = slice_link((2, 32, 3), "auto").environment(rank=1, multiprocessors=33)
    assert env["NCCL_MULTI_RANK_GPU_ENABLE"] == "1"
    assert "NCCL_HOSTID" not in env
    assert {env[name] for name in BOUNDS} == {"4"}


def test_every_rank_over_sockets_claims_another_host_so_that_nccl_takes_one_gpu_twice():
    link = slice_link((2, 28, 9), "auto")
    hosts = {link.environment(rank, 66)["NCCL_HOSTID"] for rank in range(2)}
    assert len(hosts) == 2
    assert "NCCL_MULTI_RANK_GPU_ENABLE" not in link.environment(0, 66)


@pytest.mark.parametrize(("multiprocessors", "most"), [(132, 16), (66, 8), (32, 4), (14, 2), (2, 1), (0, 1)])
def test_channels_take_an_eighth_of_a_slice_and_at_least_one_is_left(multiprocessors, most):
    assert channels(multiprocessors) == most


def test_without_a_driver_the_size_of_a_slice_is_unknown(monkeypatch):
    monkeypatch.setattr(nccl, "_DRIVER", "no-such-library.so")
    assert slice_multiprocessors() == 0


@pytest.mark.parametrize(("number", "version"), [(2804, (2, 8, 4)), (22809, (2, 28, 9)), (23203, (2, 32, 3))])
def test_the_number_that_nccl_gives_is_its_version(number, version):
    assert parse_version(number) == version


def test_a_library_put_before_all_others_is_the_one_that_is_loaded(make_library, own_process, monkeypatch):
    monkeypatch.setenv("LD_PRELOAD", str(make_library(23203)))
    assert nccl_of("decimal") == (2, 32, 3)


def test_a_library_that_the_framework_loads_is_found(make_library, own_process, monkeypatch, tmp_path):
    (tmp_path / "framework.py").write_text(f"import ctypes; ctypes.CDLL({str(make_library(22809))!r}); print('hello')")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ['PYTHONPATH']}")
    assert nccl_of("framework") == (2, 28, 9)


def test_the_library_of_nvidias_package_is_what_a_framework_will_load(make_library, monkeypatch, tmp_path):
    folder = tmp_path / "nvidia" / "nccl" / "lib"
    folder.mkdir(parents=True)
    make_library(23107).rename(folder / nccl.LIBRARY)
    look = "from paceline.systems.nccl import loaded_nccl; print(loaded_nccl())"
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.pathsep.join(sys.path)}"}
    said = subprocess.run(
        [sys.executable, "-c", look], env=environment, capture_output=True, text=True, check=True
    )  # fmt: skip
    assert said.stdout.strip() == "(2, 31, 7)"


def test_a_framework_that_cannot_be_imported_has_no_nccl(own_process):
    assert nccl_of("no_such_framework") is None


def test_without_any_library_there_is_no_nccl(monkeypatch):
    monkeypatch.setattr(nccl, "LIBRARY", "no-such-library.so")
    assert loaded_nccl() is None
