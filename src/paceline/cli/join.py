"""`paceline join`: a run in processes that something else started, such as torchrun, srun or mpirun."""

import os
import signal
import sys
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import FrameType
from typing import Annotated

import typer

from paceline.cli.options import command_with, make_option
from paceline.cli.run import exit_unless_all_well, run_and_show
from paceline.cli.run_options import SCRIPT_SUFFIX, TrainingOptions
from paceline.cli.terminal import errors
from paceline.contract.context import LOOPBACK
from paceline.errors import UserError
from paceline.runs.joined import Meeting, Membership, find_membership, meeting_of
from paceline.runs.joined.lead import LED_BY, JoinedMachines, gathered, sized, specs_of
from paceline.runs.joined.member import take_part
from paceline.runs.processes import die_with
from paceline.study import Study

EXIT_WRONG_INPUT = 2
_PANEL = "Where the processes meet"


@dataclass(frozen=True, kw_only=True)
class JoinOptions(TrainingOptions):
    """What to run, and where the processes meet if their launcher does not say."""

    host: Annotated[
        str | None, make_option("Machine of rank 0, where the launcher does not say it.", "NAME", panel=_PANEL)
    ] = None
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="A free port of it, else derived from the job's name.", metavar="N",
                     rich_help_panel=_PANEL),
    ] = None  # fmt: skip


@command_with(JoinOptions)
def join(options: JoinOptions) -> None:
    """Runs in processes that torchrun, srun, mpirun, TF_CONFIG or RANK and MASTER_ADDR describe; rank 0 stores it."""
    led_by = os.environ.pop(LED_BY, None)
    if led_by is not None:
        die_with(int(led_by))
    membership = find_membership()
    leads = membership.rank == 0 and led_by is None
    try:
        options.set_environment()
        study, meeting = _described(options, membership)
        if led_by is not None:
            # By its name this machine may be known to others only.
            meeting = replace(meeting, host=LOOPBACK)
        if not leads:
            take_part(meeting, membership.rank, specs_of(study, membership))
            return
    except UserError:
        if leads:
            raise
        # Rank 0 says the same once, for all.
        sys.exit(EXIT_WRONG_INPUT)
    _lead(study, options, membership, meeting)


def _described(options: JoinOptions, membership: Membership) -> tuple[Study, Meeting]:
    if (options.study or "").endswith(SCRIPT_SUFFIX):
        raise UserError(
            f"paceline join makes runs of models, and {options.study} is a script, which {membership.launcher} can "
            f"start itself; measure it with paceline run {options.study}"
        )
    study = sized(options.described_study(), membership)
    return study, meeting_of(membership, options.host, options.port, os.environ)


def _lead(study: Study, options: JoinOptions, membership: Membership, meeting: Meeting) -> None:
    others = membership.world - 1
    with ExitStack() as stack:
        waiting = f"waiting for {others} other process{'es' if others != 1 else ''} of {membership.launcher}"
        with errors().status(waiting):
            machines = stack.enter_context(gathered(membership, meeting))
        _heed_the_launcher(machines)
        outcome = run_and_show(study, options, machines)
    exit_unless_all_well(outcome)


def _heed_the_launcher(machines: JoinedMachines) -> None:
    """A launcher that has lost a process ends the others: the loss is then the reason, not the signal."""

    def end(_signal: int, _frame: FrameType | None) -> None:
        if not machines.lost:
            raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, end)
