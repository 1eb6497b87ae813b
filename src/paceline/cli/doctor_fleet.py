"""`paceline doctor --on FLEET`: one row for each machine, and what is wrong with those that cannot be used."""

from rich.markup import escape
from rich.table import Table

from paceline.cli.terminal import errors, output
from paceline.errors import UserError
from paceline.fleet import Fleet
from paceline.runs.agent.messages import LinkMeasured
from paceline.runs.fleets import ENGINES
from paceline.runs.launchers.examine import ExaminedMachine, examine_fleet
from paceline.units import format_bytes, format_count, format_seconds

COLUMNS = ("machine", "address", "versions", "devices", "data", "clock", "link")
BITS = 8


def examine(fleet: Fleet) -> None:
    """Prints what is known of each machine; raises `UserError` where one of them cannot be used."""
    with errors().status("reaching the machines") as status:
        machines = examine_fleet(fleet, ENGINES[fleet.engine](fleet), status.update)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("", *COLUMNS):
        table.add_column(column, no_wrap=column in ("machine", "address"))
    for machine in machines:
        table.add_row("[yellow]–[/]" if machine.problem else "[green]✓[/]", *map(escape, _row(machine)))
    output().print(table)
    bad = [machine for machine in machines if machine.problem]
    for machine in bad:
        output().print(f"[yellow]–[/] {escape(str(machine.problem))}")
    if bad:
        usable = [machine.name for machine in machines if not machine.problem]
        left = f"; usable as they are: {', '.join(usable)}" if usable else ""
        raise UserError(f"{format_count(len(bad), 'machine')} of {len(machines)} cannot be used{left}")


def _row(machine: ExaminedMachine) -> tuple[str, ...]:
    facts = machine.facts
    if facts is None:
        return machine.name, "not reached", *[""] * (len(COLUMNS) - 2)
    versions = [f"paceline {facts.paceline}", f"python {facts.python}"]
    versions += [f"{name} {version}" for name, version in sorted(facts.frameworks.items())]
    cores = machine.machine.cores if machine.machine is not None else facts.cores
    gpus = machine.machine.gpus if machine.machine is not None else range(len(facts.gpus))
    devices = [f"{format_count(len(cores), 'core')} of {facts.cpu}", *(facts.gpus[number].name for number in gpus)]
    devices.append(format_bytes(facts.memory_bytes))
    clock = machine.clock
    offset = f"{_signed(clock.offset / 1e9)} ± {format_seconds(clock.error / 1e9)}" if clock is not None else ""
    links = [f"{name}: {_link(link)}" for name, link in machine.links.items()]
    return (
        machine.name, f"{facts.address}\n{facts.interface}", "\n".join(versions), "\n".join(devices),
        "\n".join(sorted(facts.data)), offset, "\n".join(links),
    )  # fmt: skip


def _signed(seconds: float) -> str:
    return f"{'-' if seconds < 0 else '+'}{format_seconds(abs(seconds))}"


def _link(link: LinkMeasured) -> str:
    if link.bytes_per_second is None or link.round_trip_seconds is None:
        return f"none ({link.reason})"
    return f"{format_rate(link.bytes_per_second)}, {format_seconds(link.round_trip_seconds)} there and back"


def format_rate(bytes_per_second: float) -> str:
    """A rate as networks have it: `940 Mbit/s`."""
    bits = bytes_per_second * BITS
    for size, unit in ((1e9, "Gbit/s"), (1e6, "Mbit/s")):
        if bits >= size:
            return f"{bits / size:.3g} {unit}"
    return f"{bits / 1e3:.3g} kbit/s"
