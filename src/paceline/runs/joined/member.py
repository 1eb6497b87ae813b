"""One process of a job that something else started: an agent for one worker, which trusts the first process little.

What to run it knows from its own command line. The first process says where, on which cores and when, and nothing that
is not on the command line is run, whoever may be at the other end.
"""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from signal import SIGHUP, SIGINT, SIGTERM, Signals
from typing import Any, ClassVar

from paceline.errors import UserError
from paceline.runs.agent.channel import Channel, ChannelClosedError, SilenceError
from paceline.runs.agent.dial_back import connect
from paceline.runs.agent.messages import EndRun, OpenRun, StartRun
from paceline.runs.agent.session import Session, run_session
from paceline.runs.joined import Meeting
from paceline.spec import RunSpec

# How far apart the first and the last process of a job may start.
GATHER_SECONDS = 120.0
RETRY_SECONDS = 0.1
# After a signal, how long the first process, which has heard it too, may take to end everything in order.
SIGNAL_SECONDS = 8.0


@dataclass
class MemberSession(Session):
    """A session that runs what its own command line says, and nothing else."""

    # By identity.
    runs: Mapping[str, RunSpec] = field(default_factory=dict)
    signals: ClassVar[tuple[Signals, ...]] = (SIGTERM, SIGHUP, SIGINT)

    def environment(self) -> dict[str, str]:
        """Nothing: each process has the variables and the options that its launcher gave it."""
        return {}

    def hear_signal(self) -> None:
        """Leaves the end to the first process for a while: a launcher signals all of them."""
        timer = threading.Timer(SIGNAL_SECONDS, self.end_now)
        timer.daemon = True
        timer.start()

    def obey(self, order: Any) -> None:
        """Opens, starts and ends runs."""
        if not isinstance(order, OpenRun | StartRun | EndRun):
            raise UserError(f"a process that joined does not take a message {type(order).__name__}")
        super().obey(order)

    def on_this_machine(self, spec: RunSpec) -> RunSpec:
        """The run as this process's own command line has it."""
        run = self.runs.get(identity(spec))
        if run is None:
            raise UserError(
                f"rank 0 wants to run {spec.spread_over}, which is not what this process was started with; start all "
                f"processes with the same options"
            )
        return run.model_copy(update={"machines": spec.machines, "instrumented": spec.instrumented})


def identity(spec: RunSpec) -> str:
    """What tells runs of one command line apart, wherever its processes are."""
    return spec.without_structure().model_copy(update={"machines": "", "instrumented": False}).key()


def take_part(meeting: Meeting, rank: int, specs: list[RunSpec]) -> None:
    """The whole life of a process that holds one worker; raises where the first process is not to be reached."""
    runs = {identity(spec): spec for spec in specs}
    try:
        run_session(_dialled(meeting, rank), GATHER_SECONDS, partial(MemberSession, runs=runs))
    except (ChannelClosedError, SilenceError):
        raise UserError("rank 0 ended before this process was done, and says why") from None


def _dialled(meeting: Meeting, rank: int) -> Channel:
    until = time.monotonic() + GATHER_SECONDS
    while True:
        try:
            return connect(meeting.host, meeting.port, rank, meeting.key)
        except OSError as error:
            if time.monotonic() > until:
                raise UserError(
                    f"rank {rank} did not reach rank 0 at {meeting.host}:{meeting.port} within {GATHER_SECONDS:g} s: "
                    f"{error}; name another place with --host and --port"
                ) from None
        time.sleep(RETRY_SECONDS)
