"""Agents by Slurm: `srun` starts one on each node of an allocation, and each dials back to where srun was started.

Inside an allocation (salloc, sbatch) its nodes are used. Elsewhere `salloc` asks for one, which is held by a process
that ends when the launcher does, whatever way it ends.
"""

import contextlib
import errno
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from typing import IO

from paceline.errors import UserError
from paceline.fleet import Fleet, FleetMachine, SlurmRequest
from paceline.runs.agent.dial_back import Reception
from paceline.runs.launchers.dialled import DialledCall

JOB_ID, NODES = "SLURM_JOB_ID", "SLURM_JOB_NODELIST"
ALL_INTERFACES = "0.0.0.0"
# Says what was allocated, and then holds it until the launcher closes its input.
HOLD = f'echo "${JOB_ID} ${NODES}"; exec cat >/dev/null'
# A request that waits for its turn is withdrawn when the launcher is killed: salloc itself would go on to wait. By
# SIGHUP, at which salloc stops waiting for what holds the allocation: any other signal ends the job first, and where
# its holder ends at that moment too, salloc 22.05 asks for it for ever, at full speed.
TIED = (
    "import os, signal, sys\n"
    "from paceline.runs.processes import die_with\n"
    "die_with(int(sys.argv[1]), signal.SIGHUP)\n"
    "os.execvp(sys.argv[2], sys.argv[2:])\n"
)
# srun says there where it was started, which is where the launcher is.
AGENT = 'exec "$0" -P -m paceline.runs.agent --dial "$SLURM_LAUNCH_NODE_IPADDR:$1"'
# A step that takes what the allocation has on its node, also beside other steps, and leaves pinning to the agent.
STEP = ("--overlap", "--nodes=1", "--ntasks=1", "--ntasks-per-node=1", "--cpu-bind=none", "--input=none",
        "--kill-on-bad-exit=1", "--export=ALL")  # fmt: skip
LAST_WORDS = 2_000
END_SECONDS = 5.0
# Follows its name in the list of partitions.
DEFAULT_PARTITION = "*"


@contextlib.contextmanager
def open_slurm(fleet: Fleet) -> Iterator[tuple[Fleet, "SlurmEngine"]]:
    """The nodes of an allocation as machines; one that was made for the fleet is given back when the context ends."""
    with contextlib.ExitStack() as stack:
        job, nodes = stack.enter_context(_allocation(fleet.slurm))
        named = fleet.of_machines(*_host_names(nodes))
        reception = Reception(ALL_INTERFACES, len(named.machines))
        stack.callback(reception.close)
        yield named, SlurmEngine(named, job, reception)


class SlurmEngine:
    """Starts agents by srun."""

    def __init__(self, fleet: Fleet, job: str, reception: Reception) -> None:
        self._fleet, self._job, self._reception = fleet, job, reception
        self._called: set[int] = set()

    def call(self, number: int) -> DialledCall:
        """Begins to start the agent of a node, and does not wait for it."""
        if number in self._called:
            self._reception.expect_again(number)
        self._called.add(number)
        machine = self._fleet.machines[number]
        environment = {**os.environ, **machine.environment, **self._reception.environment(number)}
        port = self._reception.where.rpartition(":")[2]
        program = SlurmStep(step_command(self._job, machine, port), environment, port)
        return DialledCall(machine, number, self._fleet.lease_seconds, self._reception, program)


class SlurmStep:
    """One client of srun, which ends together with the agent that it started."""

    def __init__(self, words: list[str], environment: dict[str, str], port: str) -> None:
        self._port = port
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the step
        self._process = _start(words, stdout=self._errors, stderr=self._errors, environment=environment)

    def ended(self) -> str | None:
        """Why srun ended, in words; None while it runs."""
        code = self._process.poll()
        return None if code is None else f"srun ended with exit code {code}: {self.last_words()}"

    def last_words(self) -> str:
        """The end of what the agent printed, or else srun."""
        size = os.fstat(self._errors.fileno()).st_size
        text = os.pread(self._errors.fileno(), LAST_WORDS, max(0, size - LAST_WORDS)).decode(errors="replace")
        lines = text.strip().split("\n")
        return next((line for line in reversed(lines) if not line.startswith("srun:")), lines[-1])

    def way(self) -> str:
        """Where the agent dials."""
        return f"port {self._port} of this machine"

    def end(self) -> None:
        """Ends srun, which ends its step."""
        self._process.terminate()

    def close(self) -> None:
        """Waits for srun."""
        _wait(self._process)
        self._errors.close()


def step_command(job: str, machine: FleetMachine, port: str) -> list[str]:
    """The words that start an agent on a node."""
    python = machine.python or sys.executable
    return ["srun", f"--jobid={job}", f"--nodelist={machine.reached_at}", *STEP, "sh", "-c", AGENT, python, port]


def allocation_command(request: SlurmRequest) -> list[str]:
    """The words that ask for an allocation and hold it."""
    values = request.model_dump(exclude={"options"}, exclude_none=True)
    options = [f"--{name.replace('_', '-')}={value}" for name, value in values.items()]
    return ["salloc", "--no-bell", "--job-name=paceline", *options, *request.options, "sh", "-c", HOLD]


@contextlib.contextmanager
def _allocation(request: SlurmRequest) -> Iterator[tuple[str, str]]:
    """The number of a job and the list of its nodes."""
    job, wanted = os.environ.get(JOB_ID), request != SlurmRequest()
    if job is not None and wanted:
        raise UserError(
            f"--on slurm with settings asks for an allocation, and this command is in one (job {job}); use --on slurm"
        )
    if job is not None:
        yield job, os.environ.get(NODES, "")
        return
    if not wanted:
        raise UserError(
            "--on slurm is for commands inside an allocation (salloc, sbatch); to get one, use such as "
            "--on slurm:nodes=2,time=00:30:00"
        )
    with _held(request) as allocated:
        yield allocated


@contextlib.contextmanager
def _held(request: SlurmRequest) -> Iterator[tuple[str, str]]:
    if shutil.which("salloc") is None:
        raise _cannot_start("salloc", os.strerror(errno.ENOENT))
    _refuse_more_than_there_are(request)
    with tempfile.TemporaryFile() as errors:
        words = [sys.executable, "-P", "-c", TIED, str(os.getpid()), *allocation_command(request)]
        process = _start(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
        assert process.stdin is not None and process.stdout is not None
        nodes = ""
        try:
            job, _, nodes = process.stdout.readline().decode().strip().partition(" ")
            if not nodes:
                process.wait()
                words = os.pread(errors.fileno(), LAST_WORDS, 0).decode(errors="replace").strip().split("\n")
                raise UserError(f"Slurm gave no allocation: {'; '.join(words)}")
            yield job, nodes
        finally:
            # What holds the allocation ends, and salloc with it; one that still waits for its turn is told to stop.
            process.stdin.close()
            if not nodes:
                process.terminate()
            _wait(process)
            process.stdout.close()


def _refuse_more_than_there_are(request: SlurmRequest) -> None:
    """Refuses more nodes than a partition has: Slurm would wait for them for ever."""
    chosen = [f"--partition={request.partition}"] if request.partition is not None else []
    listing = _start(["sinfo", "--noheader", "--format=%P %D", *chosen], stdout=subprocess.PIPE)
    nodes = Counter[str]()
    for line in listing.communicate()[0].decode().splitlines():
        name, _, count = line.strip().rpartition(" ")
        if count.isdecimal() and (chosen or name.endswith(DEFAULT_PARTITION)):
            nodes[name.removesuffix(DEFAULT_PARTITION)] += int(count)
    # What cannot be read, such as the list of a partition that is not there, is left to Slurm to refuse.
    if len(nodes) == 1 and request.nodes is not None:
        ((name, there),) = nodes.items()
        if request.nodes > there:
            raise UserError(
                f"--on slurm asks for {request.nodes} nodes, and partition {name} has {there}; ask for fewer, or name "
                f"another partition"
            )


def _host_names(nodes: str) -> list[str]:
    """`node[1-3]` as the names of its nodes."""
    with tempfile.TemporaryFile() as errors:
        process = _start(["scontrol", "show", "hostnames", nodes], stdout=subprocess.PIPE, stderr=errors)
        names = process.communicate()[0].decode().split()
    if process.returncode or not names:
        raise UserError(
            f"scontrol does not know the nodes {nodes!r} of the allocation; run sinfo to see those there are"
        )
    return names


def _start(
    words: list[str], stdin: int = subprocess.DEVNULL, stdout: IO[bytes] | int = subprocess.DEVNULL,
    stderr: IO[bytes] | int = subprocess.DEVNULL, environment: dict[str, str] | None = None,
) -> "subprocess.Popen[bytes]":  # fmt: skip
    """A program of Slurm's. Ctrl-C is for the launcher, which then ends runs in their order."""
    try:
        return subprocess.Popen(words, stdin=stdin, stdout=stdout, stderr=stderr, env=environment, process_group=0)
    except OSError as error:
        raise _cannot_start(words[0], error.strerror) from None


def _cannot_start(program: str, why: str | None) -> UserError:
    return UserError(f"{program} cannot be started: {why}; --on slurm needs Slurm's own programs on the path")


def _wait(process: "subprocess.Popen[bytes]") -> None:
    """Waits until it has ended, by force where it does not end by itself: Slurm clears away what it left."""
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
