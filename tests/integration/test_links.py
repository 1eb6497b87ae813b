"""Runs behind links, in real network namespaces: the same training, at the speed that the link allows, and no trace."""

import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import pytest

from integration.conftest import Tool, wait_until, workers_of
from paceline.api import run
from paceline.contract.context import spec_facts
from paceline.errors import UserError
from paceline.link import NetworkLink
from paceline.plan import complete
from paceline.record import Record, Status
from paceline.runs.links import network
from paceline.runs.links.namespaces import enter
from paceline.runs.links.network import KEEPER, linked_network
from paceline.store import Store
from paceline.study import Study
from paceline.systems.links import link_means, why_no_link

RUN = {
    "workload": "mnist-small", "dataset": "mnist-5k", "train_samples": 1024, "global_batch": 128, "steps": 8,
    "strategy": "torch-ddp", "workers": 2,
}  # fmt: skip
# Losses of the same arithmetic in the same order.
EQUAL = 1e-6
# A gradient of 1.6 MB at 100 Mbit/s takes long beside computing it, so other programs change little.
PHYSICS = "100mbit:5ms"
# What frames, windows and announcements may cost beside the bytes and one delay.
MOST_TIMES_THE_BOUND = 4.0


@pytest.fixture(autouse=True)
def links_can_be_made() -> None:
    """Skips where links cannot be made; fails there where `make test REQUIRE=machines` insists on them."""
    reason = why_no_link(NetworkLink.from_text(PHYSICS))
    if reason is not None and "machines" in os.environ.get("PACELINE_REQUIRE", "").split(","):
        pytest.fail(reason)
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture
def results_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A new results file; afterwards no process of a run may be left, nor a keeper."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield tmp_path / "results.db"
    assert workers_of(os.getpid()) == []
    assert keepers() == []


def keepers() -> list[int]:
    """Keepers of networks among the descendants of this process."""
    children = psutil.Process().children(recursive=True)
    return [child.pid for child in children if child.is_running() and KEEPER in _words(child)]


def _words(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def records(results_file: Path, fixed: dict[str, Any], links: list[str]) -> dict[str, Record]:
    """One run over each link, by its text."""
    run(Study(fixed=fixed, factors={"link": links}), db=results_file)
    with Store.open_existing(results_file) as store:
        made = store.records(with_steps=True)
    assert [(record.status, record.reason) for record in made] == [(Status.OK, None)] * len(links)
    return {record.spec.link.text if record.spec.link else "none": record for record in made}


def step_seconds(record: Record) -> list[float]:
    """Seconds of the steps of rank 0 but for the first ones, in which connections are opened."""
    return list(record.step_seconds[0])[2:]


@pytest.mark.torch
@pytest.mark.parametrize(
    "fields", [{}, {"strategy": "torch-ps-sync"}, pytest.param({"strategy": "torch-fsdp"}, marks=pytest.mark.soak)]
)
def test_runs_over_links_train_as_runs_over_loopback(results_file: Path, fields: dict[str, Any]) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    made = records(results_file, {**RUN, **fields}, ["none", "1gbit", "1gbit:2ms"])
    for text in ("1gbit", "1gbit:2ms"):
        assert made[text].losses == pytest.approx(made["none"].losses, abs=EQUAL)


@pytest.mark.soak
@pytest.mark.parametrize(
    "fields", [{"strategy": "tf-multiworker"}, {"strategy": "jax-data", "knobs": {"processes": True}}]
)
def test_other_frameworks_cross_links_too(results_file: Path, fields: dict[str, Any]) -> None:
    made = records(results_file, {**RUN, **fields}, ["none", "1gbit:2ms"])
    assert made["1gbit:2ms"].losses == pytest.approx(made["none"].losses, abs=EQUAL)


@pytest.mark.torch
def test_a_step_takes_what_the_link_takes_for_its_gradients(results_file: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    link = NetworkLink.from_text(PHYSICS)
    made = records(results_file, RUN, ["none", link.text])
    gradient_bytes = 4 * spec_facts(complete(made["none"].spec)).parameters
    # In a ring of two, each sends as many bytes as the gradients have, and nothing is there before the first arrive.
    bound = gradient_bytes / link.bytes_per_second + link.delay_seconds
    linked = step_seconds(made[link.text])
    assert min(linked) >= bound
    assert min(linked) <= MOST_TIMES_THE_BOUND * bound + median(step_seconds(made["none"]))


@pytest.mark.parametrize("text", ["50mbit", "50mbit:10ms"])
def test_bytes_between_namespaces_keep_to_the_rate_and_the_delay(text: str) -> None:
    link, payload = NetworkLink.from_text(text), bytes(1_000_000)
    with linked_network(link, 2, sorted(os.sched_getaffinity(0))) as (ready, listener, _pid, _relays):
        address = listener.getsockname()
        echo = _forked(ready.namespaces[0], lambda: _answer(listener, len(payload)))
        asking, answered = os.pipe()
        client = _forked(ready.namespaces[1], lambda: os.write(answered, _exchange(address, payload)))
        os.close(answered)
        with os.fdopen(asking) as answer:
            word_seconds, payload_seconds = map(float, answer.read().split())
        assert [os.waitpid(pid, 0)[1] for pid in (client, echo)] == [0, 0]
    assert word_seconds >= 2 * link.delay_seconds
    assert payload_seconds >= 0.95 * len(payload) / link.bytes_per_second + 2 * link.delay_seconds


def _forked(namespaces: list[str], act: Any) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        enter(namespaces)
        act()
        code = 0
    finally:
        os._exit(code)


def _answer(listener: socket.socket, payload_bytes: int) -> None:
    connection, _ = listener.accept()
    with connection:
        for expected in (1, payload_bytes):
            left = expected
            while left:
                left -= len(connection.recv(min(left, 1 << 16)))
            connection.sendall(b"x")


def _exchange(address: tuple[str, int], payload: bytes) -> bytes:
    from time import perf_counter

    taken = []
    with socket.create_connection(address) as connection:
        for message in (b"x", payload):
            began = perf_counter()
            connection.sendall(message)
            connection.recv(1)
            taken.append(perf_counter() - began)
    return " ".join(map(str, taken)).encode()


@pytest.mark.torch
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_when_the_tool_is_ended(tool: Tool, number: signal.Signals) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    before = root_network()
    started = tool.start(
        "run", "--workload", "mnist-small", "--dataset", "mnist-5k", "--strategy", "torch-ddp", "--workers", "2",
        "--global-batch", "128", "--steps", "100000", "--link", "100mbit:1ms", "--progress", "json",
    )  # fmt: skip
    started.wait_for('"step"')
    kept = [pid for pid in psutil.Process(started.process.pid).children() if KEEPER in _words(pid)]
    workers = started.workers()
    assert len(kept) == 1
    assert len(workers) == 2
    namespaces = {namespace_of(pid) for pid in workers}
    assert len(namespaces) == 2
    assert namespace_of(os.getpid()) not in namespaces
    started.process.send_signal(number)
    started.end()
    wait_until(lambda: not kept[0].is_running(), "the keeper to end with its tool")
    wait_until(lambda: tool.running_workers() == [], "the workers to end with their tool")
    assert namespaces & used_namespaces() == set()
    assert root_network() == before
    # A killed tool leaves the folder of its run to the next one.
    assert tool("run", "--strategy", "fake", "--steps", "1").code == 0


def root_network() -> str:
    """Interfaces and rules of the network that the test itself is in."""
    commands = (("ip", "-br", "link"), ("tc", "qdisc", "show"))
    return "".join(subprocess.run(words, capture_output=True, text=True, check=True).stdout for words in commands)


def namespace_of(pid: int) -> str:
    """The network namespace of a process, by its number."""
    return str(Path(f"/proc/{pid}/ns/net").readlink())


def used_namespaces() -> set[str]:
    """Network namespaces of all processes."""
    found = set()
    for pid in psutil.pids():
        try:
            found.add(namespace_of(pid))
        except OSError:
            continue
    return found


def test_a_network_that_cannot_be_made_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    means = link_means()
    failing = tmp_path / "ip"
    failing.write_text("#!/bin/sh\necho 'RTNETLINK answers: No buffer space available' >&2\nexit 2\n")
    failing.chmod(0o755)
    monkeypatch.setattr(network, "link_means", lambda: means)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with (
        pytest.raises(UserError, match=r"^link 1gbit could not be made: ip: RTNETLINK answers: No buffer space"),
        linked_network(NetworkLink.from_text("1gbit"), 2, (0,)),
    ):
        pass
    assert keepers() == []
