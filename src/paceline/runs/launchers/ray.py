"""Agents by Ray: a placement group with a bundle on each node, an actor in each, and the agent as the actor's child.

Ray places and ends the actors; everything else goes over the agents' own connections, by which they dial back. The
bundles take all that Ray counts on a node, so that no other work of the cluster disturbs a run.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from typing import Any

from paceline.errors import UserError
from paceline.fleet import Fleet
from paceline.runs.agent.dial_back import Reception
from paceline.runs.launchers.dialled import DialledCall

ALL_INTERFACES = "0.0.0.0"
# How long the nodes may be busy with other work.
FREE_NODES_SECONDS = 60.0
# How long an actor may take to say how its child is.
ANSWER_SECONDS = 2.0
LAST_WORDS = 2_000
REACH_SECONDS = 5.0
# Where Ray itself looks for the address of a cluster.
ADDRESS = "RAY_ADDRESS"
COUNTED = ("CPU", "GPU")
# The agent dies with its actor, however that dies.
START_AGENT = (
    "import sys\n"
    "from paceline.runs.processes import die_with\n"
    "die_with(int(sys.argv.pop(1)))\n"
    "from paceline.runs.agent.__main__ import main\n"
    "main(sys.argv[1:])\n"
)


class AgentHost:
    """The actor: holds the agent as its child, which the kernel ends when the actor dies."""

    def start(self, python: str | None, where: str, environment: dict[str, str]) -> None:
        """Starts the agent."""
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - goes with the actor
        words = [python or sys.executable, "-P", "-c", START_AGENT, str(os.getpid()), "--dial", where]
        self._child = subprocess.Popen(
            words, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, stdout=self._output,
            stderr=self._output, process_group=0,
        )  # fmt: skip

    def ended(self) -> tuple[int, str] | None:
        """The agent's exit code and the last that it printed; None while it runs."""
        code = self._child.poll()
        if code is None:
            return None
        size = os.fstat(self._output.fileno()).st_size
        text = os.pread(self._output.fileno(), LAST_WORDS, max(0, size - LAST_WORDS)).decode(errors="replace")
        return code, text.strip().rpartition("\n")[2]


@contextlib.contextmanager
def open_ray(fleet: Fleet) -> Iterator[tuple[Fleet, "RayEngine"]]:
    """The nodes of a Ray cluster as machines, kept free of other work while the context lasts."""
    ray = _connected(fleet.ray.address)
    with contextlib.ExitStack() as stack:
        stack.callback(ray.shutdown)
        nodes = _nodes(ray, fleet.ray.nodes)
        group = stack.enter_context(_placement(ray, nodes))
        named = fleet.of_machines(*_names(nodes))
        reception = Reception(ALL_INTERFACES, len(nodes))
        stack.callback(reception.close)
        yield named, RayEngine(ray, named, nodes, group, reception)


class RayEngine:
    """Starts an actor on each node, which starts the agent."""

    def __init__(self, ray: Any, fleet: Fleet, nodes: list[dict[str, Any]], group: Any, reception: Reception) -> None:
        self._ray, self._fleet, self._nodes, self._group, self._reception = ray, fleet, nodes, group, reception
        self._called: set[int] = set()
        self._where = f"{ray.util.get_node_ip_address()}:{reception.where.rpartition(':')[2]}"

    def call(self, number: int) -> DialledCall:
        """Begins to start the agent of a node, and does not wait for it."""
        if number in self._called:
            self._reception.expect_again(number)
        self._called.add(number)
        machine = self._fleet.machines[number]
        environment = {**machine.environment, **self._reception.environment(number)}
        program = RayAgent(
            self._ray, self._group, number, _counted(self._nodes[number]), (machine.python, self._where, environment)
        )
        return DialledCall(machine, number, self._fleet.lease_seconds, self._reception, program)


class RayAgent:
    """An actor of Ray's and the agent that is its child."""

    def __init__(self, ray: Any, group: Any, number: int, resources: dict[str, float], orders: tuple[Any, ...]) -> None:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        place = PlacementGroupSchedulingStrategy(placement_group=group, placement_group_bundle_index=number)
        options = {"num_cpus": resources.get("CPU", 0), "num_gpus": resources.get("GPU", 0)}
        self._ray, self._where = ray, orders[1]
        self._actor = ray.remote(AgentHost).options(**options, scheduling_strategy=place).remote()
        self._started = self._actor.start.remote(*orders)

    def ended(self) -> str | None:
        """Why the agent ended, in words; None while it runs or is not there yet."""
        try:
            if not self._ray.wait([self._started], timeout=0)[0]:
                return None
            self._ray.get(self._started)
            state = self._ray.get(self._actor.ended.remote(), timeout=ANSWER_SECONDS)
        except self._ray.exceptions.GetTimeoutError:
            return None
        except self._ray.exceptions.RayError as error:
            return f"Ray lost its actor: {str(error).strip().splitlines()[-1]}"
        return None if state is None else f"its agent ended with exit code {state[0]}: {state[1]}"

    def last_words(self) -> str:
        """How the agent ended, as far as Ray knows."""
        return self.ended() or ""

    def way(self) -> str:
        """Where the agent dials."""
        return f"this machine at {self._where}"

    def end(self) -> None:
        """Ends the actor, and with it the agent."""
        self._ray.kill(self._actor)

    def close(self) -> None:
        """Nothing: what is left of an actor goes with its placement group."""


def _connected(address: str) -> Any:
    """Ray, connected to the cluster at that address."""
    try:
        import ray
    except ImportError:
        raise UserError("--on ray needs Ray, which is not installed here: pip install 'paceline[ray]'") from None
    try:
        _check_reachable(os.environ.get(ADDRESS, address) if address == "auto" else address)
        with _signals_kept():
            ray.init(address=address, log_to_driver=False, configure_logging=False)
    except (OSError, RuntimeError, ValueError) as error:
        words = str(error).strip().partition("\n")[0]
        raise UserError(
            f"no Ray cluster answers at {address}: {words}; start one with ray start --head, or name its address with "
            f"--on ray:ADDRESS"
        ) from None
    return ray


def _check_reachable(address: str) -> None:
    """Raises `OSError` where nobody listens: Ray itself would try for many minutes."""
    host, colon, port = address.rpartition("//")[2].rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host, int(port)), REACH_SECONDS).close()


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Ray makes a plain exit of SIGTERM, which for a launcher is an interrupt."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _nodes(ray: Any, count: int | None) -> list[dict[str, Any]]:
    """The cluster's nodes that are alive and have cores, in the order of their addresses."""
    alive = [node for node in ray.nodes() if node["Alive"] and _counted(node)]
    alive.sort(key=lambda node: [int(part) for part in node["NodeManagerAddress"].split(".") if part.isdigit()])
    if count is not None and len(alive) < count:
        raise UserError(f"{count} nodes of Ray were asked for and its cluster has {len(alive)}; ask for fewer")
    if not alive:
        raise UserError("the Ray cluster has no node with a CPU to use; add one with ray start --address")
    return alive[:count]


def _counted(node: dict[str, Any]) -> dict[str, float]:
    """What Ray counts on a node that runs can use."""
    return {name: float(node["Resources"][name]) for name in COUNTED if node["Resources"].get(name)}


def _names(nodes: list[dict[str, Any]]) -> list[str]:
    """Host names, or addresses where several nodes have the same name."""
    names = [str(node["NodeManagerHostname"]) for node in nodes]
    return names if len(set(names)) == len(names) else _addresses(nodes)


def _addresses(nodes: list[dict[str, Any]]) -> list[str]:
    """Addresses, or with numbers where several nodes of a trial cluster are one host."""
    addresses = [str(node["NodeManagerAddress"]) for node in nodes]
    numbered = [f"{address}-{number}" for number, address in enumerate(addresses)]
    return addresses if len(set(addresses)) == len(addresses) else numbered


@contextlib.contextmanager
def _placement(ray: Any, nodes: list[dict[str, Any]]) -> Iterator[Any]:
    """A bundle on each of the nodes, with all that Ray counts there."""
    bundles = [
        # The mark of a node, which each has by itself, says which one is meant.
        {**_counted(node), _mark(node): 0.001}
        for node in nodes
    ]
    group = ray.util.placement_group(bundles, strategy="STRICT_SPREAD")
    try:
        if not group.wait(timeout_seconds=FREE_NODES_SECONDS):
            raise UserError(
                f"the {len(nodes)} nodes of the Ray cluster were not free within {FREE_NODES_SECONDS:g} s; wait for "
                f"its other work, or ask for fewer nodes in a fleet file (ray = {{nodes = ...}})"
            )
        yield group
    finally:
        ray.util.remove_placement_group(group)


def _mark(node: dict[str, Any]) -> str:
    return next(str(name) for name in node["Resources"] if name.startswith("node:") and "__" not in name)
