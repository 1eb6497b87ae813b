"""torchrun's elastic agents, one for each worker: when a worker leaves or joins, they start all of them anew.

An agent is killed with its worker, as when a machine is lost, and another one is started in its place. The first one
keeps the store where agents meet, and stays.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from paceline.contract.context import LOOPBACK, Process
from paceline.runs.launchers.local import LocalGroup
from paceline.runs.processes import held_port, is_alive
from paceline.runs.wire import WorkerOrders

AGENT, MEMBER = "paceline.runs.elastic.agent", "paceline.runs.elastic.member"
# Where each worker leaves its number, which only its agent knows otherwise.
PIDS = "elastic-pids"
# How long agents wait for more of them once there are enough; torchrun's own is 30 s.
LAST_CALL_SECONDS = 1
MONITOR_SECONDS = 0.1
# Each change costs the remaining agents a restart, and so may a false alarm on a busy machine.
MOST_RESTARTS = 20
# How long workers may take to follow their agents into death, which the kernel sees to.
END_SECONDS = 10.0


@dataclass
class Agents:
    """The agents of a run in the order of their numbers; the last one leaves and is replaced."""

    group: LocalGroup
    processes: tuple[Process, ...]
    away: bool = False
    _agents: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    _port: int = 0

    def start(self) -> None:
        """Starts every agent; the first one keeps the store."""
        with held_port(LOOPBACK) as held:
            self._port = held.getsockname()[1]
        orders = WorkerOrders(
            **dict(self.group.orders), host=LOOPBACK, port=self._port, checkpoints=self.group.checkpoints
        )
        self.group.folder.write_orders(orders)
        self._pids.mkdir()
        self.group.meters.start()
        for process in self.processes:
            self._start(process.rank, self.group.folder.log(process.rank))

    def _start(self, number: int, log: Path) -> None:
        workers = len(self.processes)
        # How soon an agent is taken for lost stays torchrun's own, 15 s: with 3 s, agents on a busy machine took each
        # other for lost, and two groups trained side by side.
        conf = {"is_host": str(number == 0).lower(), "last_call_timeout": LAST_CALL_SECONDS}
        options = {
            "nnodes": f"1:{workers}", "nproc-per-node": 1, "rdzv-backend": "c10d",
            "rdzv-endpoint": f"{LOOPBACK}:{self._port}", "rdzv-id": self.group.folder.path.name,
            "rdzv-conf": ",".join(f"{name}={value}" for name, value in conf.items()), "local-addr": LOOPBACK,
            "max-restarts": MOST_RESTARTS, "monitor-interval": MONITOR_SECONDS,
        }  # fmt: skip
        words = [f"--{name}={value}" for name, value in options.items()]
        command = [sys.executable, "-P", "-m", AGENT, str(os.getpid()), *words, "-m", MEMBER]
        # Without it, agents share their store with the workers, who never find each other again after a restart.
        environment = {
            **self.group.environments[number], "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            # What an agent that is killed leaves behind goes with the run's folder.
            "TMPDIR": str(self.group.folder.path),
        }  # fmt: skip
        with log.open("wb") as output:
            self._agents[number] = subprocess.Popen(
                [*command, str(self.group.folder.path), str(number)],
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment, process_group=0,
            )  # fmt: skip

    @property
    def _pids(self) -> Path:
        return self.group.folder.path / PIDS

    @property
    def _last(self) -> int:
        return len(self.processes) - 1

    def leave(self) -> None:
        """Kills the last agent, and with it its worker."""
        self._kill(self._agents[self._last])
        self.away = True

    def join(self) -> None:
        """Starts an agent in its place."""
        self._start(self._last, self.group.folder.later_log(self._last))
        self.away = False

    def poll(self, seconds: float) -> list[int | None]:
        """Exit codes of the agents that are there."""
        time.sleep(seconds)
        self.group.meters.read()
        return [self._agents[process.rank].poll() for process in self.present()]

    def only_last_worker_runs(self) -> bool:
        """Whether all other agents have ended well."""
        codes = [agent.poll() for _, agent in sorted(self._agents.items())]
        return codes[-1] is None and all(code == 0 for code in codes[:-1])

    def present(self) -> tuple[Process, ...]:
        """The processes of the last group of workers, whose ranks are numbered anew."""
        return self.processes[:-1] if self.away else self.processes

    def kill(self) -> None:
        """Ends every agent and waits until the kernel has ended their workers."""
        for agent in self._agents.values():
            self._kill(agent)
        deadline = time.monotonic() + END_SECONDS
        while any(map(is_alive, self._worker_pids())) and time.monotonic() < deadline:
            time.sleep(MONITOR_SECONDS)
        self.group.kill()

    def _worker_pids(self) -> list[int]:
        return [int(path.name) for path in self._pids.iterdir()] if self._pids.exists() else []

    @staticmethod
    def _kill(agent: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(agent.pid, signal.SIGKILL)
        agent.wait()
