"""A Ray cluster for tests: a node in the network namespace of each machine (see `namespaces.py`), the first as head."""

import os
import subprocess
import sysconfig
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from namespaces import NetworkOfMachines, machines, required_or_skipped

PATIENCE_SECONDS = 180.0
PORT = 6379
RAY = Path(sysconfig.get_path("scripts")) / "ray"


def required_ray_or_skipped() -> None:
    """Skips the test where there is no Ray, or where there can be no machines."""
    if find_spec("ray") is None:
        pytest.skip("Ray's tests need Ray: pip install 'paceline[ray]'")
    required_or_skipped()


@dataclass
class RayNodes:
    """Nodes of Ray, of which the first one is the head, and the place of the cluster's users."""

    network: NetworkOfMachines

    @property
    def address(self) -> str:
        """Where the head listens."""
        return f"{self.network.address(self.network.names[0])}:{PORT}"

    def command(self, *words: str) -> list[str]:
        """A command where users of the cluster are: on its head."""
        return self.network.inside(self.network.names[0], *words)

    @property
    def environment(self) -> dict[str, str]:
        """Without what a test runner set for itself."""
        return {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "COLUMNS": "200"}

    def agents(self) -> list[int]:
        """Processes of agents and of their workers on all nodes."""
        words = (b"paceline.runs.agent", b"paceline.runs.worker", b"paceline.runs.fork_server")
        lines = [
            (pid, Path(f"/proc/{pid}/cmdline"))
            for name in self.network.names
            for pid in self.network.processes(name)
        ]  # fmt: skip
        return [pid for pid, line in lines if line.exists() and any(word in line.read_bytes() for word in words)]


@contextmanager
def ray_cluster(*names: str) -> Iterator[RayNodes]:
    """A cluster of as many nodes, gone when the context ends."""
    with ExitStack() as stack:
        network = stack.enter_context(machines(*names))
        nodes = RayNodes(network)
        where = {
            names[0]: ("--head", f"--port={PORT}", "--include-dashboard=false", f"--temp-dir={network.folder}/ray"),
            **dict.fromkeys(names[1:], (f"--address={nodes.address}",)),
        }
        for name in names:
            options = ("--block", f"--node-ip-address={network.address(name)}", "--num-cpus=1", *where[name])
            log = network.folder / f"ray-{name}.log"
            _start(stack, network.inside(name, str(RAY), "start", *options), log, nodes.environment)
            _wait_for(log, "Ray runtime started")
        yield nodes


def _start(stack: ExitStack, words: list[str], log: Path, environment: dict[str, str]) -> None:
    with log.open("wb") as output:
        node = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment)

    def end() -> None:
        # Ends the processes of the node in their order.
        node.terminate()
        try:
            node.wait(timeout=30)
        except subprocess.TimeoutExpired:
            node.kill()
            node.wait()

    stack.callback(end)


def _wait_for(log: Path, text: str) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while text not in log.read_text():
        assert time.monotonic() < until, log.read_text()
        time.sleep(0.1)
