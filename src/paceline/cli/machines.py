"""The option `--on` of commands that measure, and the machines that it leads to."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Annotated

from paceline.cli.options import make_option
from paceline.cli.terminal import errors
from paceline.fleet import Fleet
from paceline.runs.fleets import Machines, open_machines
from paceline.units import format_count

On = Annotated[
    str | None,
    make_option("Machines: local, ssh:HOST,HOST, ssh:@HOSTSFILE, or a fleet file (TOML).", "FLEET"),
]


@contextmanager
def reached(fleet: Fleet) -> Iterator[Machines]:
    """The machines of a fleet, with a word on what takes a while."""
    with ExitStack() as stack:
        if fleet.machines:
            with errors().status(f"reaching {format_count(len(fleet.machines), 'machine')}"):
                machines = stack.enter_context(open_machines(fleet))
        else:
            machines = stack.enter_context(open_machines(fleet))
        yield machines
