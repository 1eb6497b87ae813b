"""An agent at work: it does what the launcher asks, one run after another, and ends everything when it is alone.

The main thread starts and follows processes, which die with it (PR_SET_PDEATHSIG is of the thread that started them).
A second thread listens: it answers pings at once and ends the agent when the channel ends or its lease runs out.
"""

import contextlib
import os
import queue
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from paceline.errors import UserError
from paceline.runs.agent.channel import BEATS_OF_A_LEASE, Channel, ChannelClosedError, SilenceError, beating, stamp
from paceline.runs.agent.commands import run_command
from paceline.runs.agent.facts import machine_facts
from paceline.runs.agent.files import file_parts, keep_part
from paceline.runs.agent.guard import start_guard
from paceline.runs.agent.links import listen_for_links, measure_link
from paceline.runs.agent.messages import (
    TO_AGENT,
    Beat,
    Codes,
    EndRun,
    FilePart,
    Leave,
    ListenForLink,
    MachineFacts,
    MeasureLink,
    OpenRun,
    Ping,
    Pong,
    RunCommand,
    RunEnded,
    RunEvent,
    RunOpen,
    StartRun,
    Trouble,
    Welcome,
)
from paceline.runs.folder import new_folder, orphaned_folders
from paceline.runs.launchers.local import LocalGroup, LocalLauncher
from paceline.runs.starters import ForkServers, Starter
from paceline.runs.wire import MachineReport, Published
from paceline.source_files import KEY_LENGTH, identity
from paceline.spec import ModelFile, RunSpec
from paceline.strategies import strategy

FOLDER_PREFIX = "paceline-agent-"
# How often a running agent looks for orders and ended processes; events of a run wake it at once.
POLL_SECONDS = 0.05
# The launcher finds out first that an agent is silent, and says so.
LEASES_OF_A_GUARD = 1.5
MODELS, DATA = "models", "data"
WEIGHTS = "weights.npz"


@dataclass
class Session:
    """One agent's life, from its first message to its last."""

    channel: Channel
    welcome: Welcome
    folder: Path
    servers: ForkServers = field(default_factory=ForkServers)
    orders: "queue.SimpleQueue[Any]" = field(default_factory=queue.SimpleQueue)
    facts: MachineFacts | None = None
    group: LocalGroup | None = None
    _open: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _started: bool = False
    _reported: set[int] = field(default_factory=set)

    # What the session ends on by itself.
    signals: ClassVar[tuple[signal.Signals, ...]] = (signal.SIGTERM, signal.SIGHUP)

    def environment(self) -> dict[str, str]:
        """Variables that the launcher wants its processes to have."""
        return self.welcome.environment

    def hear_signal(self) -> None:
        """What one of its signals does."""
        self.end_now()

    def serve(self) -> None:
        """Does what comes until the launcher says that the study is over."""
        try:
            self.facts = machine_facts(self.welcome)
        except UserError as complaint:
            self.channel.send(Trouble(text=str(complaint), user=True))
            return
        self.channel.send(self.facts)
        while True:
            self._follow()
            try:
                order = self.orders.get(timeout=0.0 if self._started else None)
            except queue.Empty:
                continue
            if isinstance(order, Leave):
                return
            try:
                self.obey(order)
            except UserError as complaint:
                self.channel.send(Trouble(text=str(complaint), user=True))
            except (OSError, RuntimeError, ValueError) as error:
                self.channel.send(Trouble(text=f"{type(error).__name__}: {error}"))

    def listen(self) -> None:
        """The whole life of the listening thread."""
        try:
            while True:
                body = self.channel.receive(self.welcome.lease_seconds)
                received = stamp()
                message = TO_AGENT.validate_json(body)
                if isinstance(message, Ping):
                    self.channel.send(Pong(number=message.number, received=received, replied=stamp()))
                elif isinstance(message, Published):
                    # Processes of this machine are waiting for it.
                    if self.group is not None:
                        self.group.folder.deliver(message)
                elif not isinstance(message, Beat):
                    self.orders.put(message)
        except (ChannelClosedError, SilenceError, OSError, ValueError):
            self.end_now()

    def end_now(self) -> None:
        """Ends this process and all that it started, whatever the main thread is doing."""
        group = self.group
        for process in list(group.processes) if group is not None else []:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        if group is not None:
            shutil.rmtree(group.folder.path, ignore_errors=True)
        shutil.rmtree(self.folder, ignore_errors=True)
        os._exit(1)

    def close(self) -> None:
        """Ends what is left of a run, and the fork servers."""
        self._open.close()
        self.servers.close()

    def obey(self, order: Any) -> None:
        """Does one thing that the launcher asks for."""
        if isinstance(order, FilePart):
            keep_part(order, self.folder)
        elif isinstance(order, OpenRun):
            self._open_run(order)
        elif isinstance(order, StartRun):
            assert self.group is not None
            self.group.meeting = (order.host, order.port)
            self.group.start()
            self._started = True
        elif isinstance(order, EndRun):
            self._end_run(order)
        elif isinstance(order, ListenForLink):
            assert self.facts is not None
            self.channel.send(listen_for_links(self.facts.address))
        elif isinstance(order, MeasureLink):
            assert self.facts is not None
            self.channel.send(measure_link(order, self.facts.address))
        elif isinstance(order, RunCommand):
            run_command(order, self.folder, self.channel.send, os.getpid())

    def _open_run(self, order: OpenRun) -> None:
        self._open.close()
        spec = self.on_this_machine(order.orders.spec)
        starter = self.servers.starter(strategy(spec.strategy)) if order.forked else Starter()
        orders = order.orders.model_copy(update={"spec": spec})
        self.group = self._open.enter_context(LocalLauncher(starter).open(orders, self.welcome.machine))
        self._started, self._reported = False, set()
        self.channel.send(RunOpen(port=self.group.meeting[1] if self.group.meeting else None))

    def on_this_machine(self, spec: RunSpec) -> RunSpec:
        """The run with its model file where the launcher's has been sent to, and with data that was sent.

        Where this machine has the same program at the same place, it is used there, beside the files that it reads.
        """
        if (self.folder / DATA).is_dir():
            os.environ["PACELINE_DATA"] = str(self.folder / DATA)
        if spec.model is None or is_same_program(spec.model):
            return spec
        path = self.folder / MODELS / spec.model.digest / spec.model.path.name
        return spec.model_copy(update={"model": spec.model.model_copy(update={"path": path})})

    def _follow(self) -> None:
        """Relays what the processes of a started run say, and who of them has ended."""
        if self.group is None or not self._started:
            return
        for event in self.group.events(POLL_SECONDS):
            self.channel.send(RunEvent(event=event))
        self._relay_published()
        ranks = list(self.group.environments)
        ended = {
            rank: code
            for rank, code in zip(ranks, self.group.exit_codes(), strict=True)
            if code is not None and rank not in self._reported
        }
        if ended:
            self._reported |= ended.keys()
            self.channel.send(Codes(codes=ended))

    def _relay_published(self) -> None:
        assert self.group is not None
        published, self.group.published = self.group.published, []
        for text in published:
            self.channel.send(text)

    def _end_run(self, order: EndRun) -> None:
        group, self._started = self.group, False
        if group is None:
            self.channel.send(RunEnded(reports={}, log_tails={}, machine=MachineReport()))
            return
        group.kill()
        ranks = list(group.environments)
        if order.weights and group.folder.weights.exists():
            for part in file_parts(group.folder.weights, WEIGHTS):
                self.channel.send(part)
        tails = group.log_tails() if all(group.folder.log(rank).exists() for rank in ranks) else [""] * len(ranks)
        self.channel.send(
            RunEnded(
                reports=dict(zip(ranks, group.reports(), strict=True)),
                log_tails=dict(zip(ranks, tails, strict=True)),
                machine=group.machines()[0],
            )
        )
        self.group = None
        self._open.close()


def is_same_program(model: ModelFile) -> bool:
    """Whether the model file and all its modules are here as they are where the run was started."""
    try:
        return model.path.is_file() and identity(model.path, KEY_LENGTH) == model.digest
    except OSError:
        return False


def run_session(
    channel: Channel, seconds: float, open_session: Callable[[Channel, Welcome, Path], Session] = Session
) -> None:
    """The agent from the launcher's first message on, which has to come within so many seconds."""
    welcome = TO_AGENT.validate_json(channel.receive(seconds))
    for orphan in orphaned_folders(FOLDER_PREFIX):
        shutil.rmtree(orphan, ignore_errors=True)
    folder = new_folder(FOLDER_PREFIX)
    patience = LEASES_OF_A_GUARD * welcome.lease_seconds
    guard = start_guard(folder, patience, (channel.read_fd, channel.write_fd))
    # Folders of runs and what processes leave behind are in it, and so go with it.
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder)
    session = open_session(channel, welcome, folder)
    os.environ |= session.environment()
    for signal_number in session.signals:
        signal.signal(signal_number, lambda _number, _frame: session.hear_signal())
    threading.Thread(target=session.listen, daemon=True, name="listener").start()
    seconds = welcome.lease_seconds / BEATS_OF_A_LEASE
    try:
        # Apart, as a long message holds up the beats that follow it.
        with beating(guard.beat, seconds), beating(partial(channel.send, Beat()), seconds):
            session.serve()
    finally:
        session.close()
        shutil.rmtree(folder, ignore_errors=True)
