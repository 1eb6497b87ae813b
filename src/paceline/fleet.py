"""`Fleet`: the machines that runs are spread over, and the engine that reaches them; a checked, frozen value.

`--on` takes `local`, `ssh:host1,host2`, `ssh:@FILE` (a hosts file, one name in a line), `slurm` in an allocation or
`slurm:nodes=2,time=00:30:00`, `ray` or `ray:ADDRESS`, or the path of a TOML file:

    engine = "ssh"
    python = "/opt/paceline/bin/python"

    [[machines]]
    name = "left"
    host = "me@workstation-1"
    address = "10.0.0.1"
    cores = 8
"""

import tomllib
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from paceline.errors import SpecError, nearest
from paceline.spec import Frozen
from paceline.units import format_count
from paceline.user_input.paths import home_path, is_file, read_content
from paceline.user_input.toml import parse_toml

# `joined` is for processes that something else started (`paceline join`); no user names it.
Engine = Literal["local", "ssh", "slurm", "ray", "joined"]
NAMED_ENGINES = ("local", "ssh", "slurm", "ray")
# Engines that know their machines, which are therefore not named.
KNOW_THEIR_MACHINES = ("slurm", "ray")
# How many seconds a machine or the launcher may be silent before the other side takes it for gone. A beat comes every
# half second; a busy machine delays one by tenths of a second.
LEASE_SECONDS = 6.0
SHORTEST_LEASE_SECONDS = 1.0
_FORMS = "use local, ssh:HOST,HOST, ssh:@HOSTSFILE, slurm, slurm:nodes=N, ray, ray:ADDRESS, or the path of a TOML file"


class FleetMachine(Frozen):
    """One machine of a fleet. What is left out is asked of the machine itself."""

    # What tables and findings call it.
    name: Annotated[str, Field(min_length=1, pattern=r"^[^\s,]+$")]
    # Where the engine reaches it; its name where that is the same.
    host: str | None = None
    # Where the other machines reach it, and the network interface that has that address.
    address: str | None = None
    interface: str | None = None
    # How many of its cores and GPUs runs may use.
    cores: Annotated[int, Field(ge=1)] | None = None
    gpus: Annotated[int, Field(ge=0)] | None = None
    # The Python that has Paceline there; that of the launcher's own path where nothing is said.
    python: str | None = None
    # Variables for its processes, such as PACELINE_DATA.
    environment: dict[str, str] = {}
    # Of ssh: port, file with the key, further words for its command line.
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    identity: Path | None = None
    ssh_options: tuple[str, ...] = ()

    @property
    def reached_at(self) -> str:
        """The name by which the engine reaches it. One that begins with a dash would be an option of ssh."""
        return self.host or self.name


class SlurmRequest(Frozen):
    """What is asked of Slurm where no allocation is at hand: fields of `salloc`."""

    nodes: Annotated[int, Field(ge=1)] | None = None
    partition: str | None = None
    time: Annotated[str, Field(pattern=r"^[0-9]+([:-][0-9]+)*$")] | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    gpus_per_node: Annotated[int, Field(ge=1)] | None = None
    # Further words for its command line.
    options: tuple[str, ...] = ()


class RayCluster(Frozen):
    """Which Ray cluster to use."""

    # As `ray.init` takes it; that of this machine's cluster where nothing is said.
    address: str = "auto"
    # Of its nodes, so many; all where nothing is said.
    nodes: Annotated[int, Field(ge=1)] | None = None


class Fleet(Frozen):
    """Machines and the engine that starts agents on them."""

    engine: Engine = "local"
    # Of Slurm and Ray the engine fills them in, once it has been opened.
    machines: tuple[FleetMachine, ...] = ()
    slurm: SlurmRequest = SlurmRequest()
    ray: RayCluster = RayCluster()
    # For machines that the engine names: the Python that has Paceline, and the network interface to use.
    python: str | None = None
    interface: str | None = None
    # Packed: as few machines as hold the workers. Spread: equal shares on all of them.
    ranks: Literal["packed", "spread"] = "packed"
    lease_seconds: float = Field(default=LEASE_SECONDS, ge=SHORTEST_LEASE_SECONDS)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its machines, which are part of a run's identity; none for the launcher's own."""
        return tuple(machine.name for machine in self.machines)

    @property
    def about(self) -> str:
        """What is being reached, for progress."""
        known = format_count(len(self.machines), "machine")
        return known if self.machines else f"the machines of {self.engine.capitalize()}"

    def of_machines(self, *names: str) -> Self:
        """The fleet once its engine has said what its machines are called."""
        machines = [FleetMachine(name=name, python=self.python, interface=self.interface) for name in names]
        return self.model_copy(update={"machines": tuple(machines)})

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.engine == "local" and self.machines:
            raise ValueError("engine local is this machine alone; leave machines out, or use engine ssh")
        if self.engine in KNOW_THEIR_MACHINES and self.machines:
            raise ValueError(f"engine {self.engine} says itself which machines there are; leave machines out")
        if self.engine == "ssh" and not self.machines:
            raise ValueError(f"engine {self.engine} needs machines; name at least one")
        foreign = [name for name in ("slurm", "ray") if name in self.model_fields_set and name != self.engine]
        if foreign:
            raise ValueError(f"{foreign[0]} has settings and the engine is {self.engine}; leave one of them out")
        twice = [name for name, count in Counter(self.names).items() if count > 1]
        if twice and self.engine != "joined":
            raise ValueError(f"machine {twice[0]!r} is named twice; give each machine a name of its own")
        bad = next((machine for machine in self.machines if machine.reached_at.startswith("-")), None)
        if bad is not None:
            raise ValueError(f"host {bad.reached_at!r} begins with a dash; name a machine")
        return self


LOCAL = Fleet()


def parse_fleet(text: str | None) -> Fleet:
    """The fleet that `--on` names."""
    if text is None or text == "local":
        return LOCAL
    engine, colon, names = text.partition(":")
    if colon and engine == "ssh":
        hosts = _hosts_of_file(home_path(names[1:], "--on ssh:@")) if names.startswith("@") else names.split(",")
        machines = [{"name": _short_name(host), "host": host.strip()} for host in hosts]
        return Fleet.parse({"engine": engine, "machines": machines}, f"--on {text}")
    if engine == "slurm":
        return Fleet.parse({"engine": engine, **_settings("slurm", names, text)}, f"--on {text}")
    if engine == "ray":
        return Fleet.parse({"engine": engine, **({"ray": {"address": names}} if names else {})}, f"--on {text}")
    path = home_path(text, "--on")
    if path.suffix == ".toml" or is_file(path):
        return load_fleet(path)
    raise SpecError(f"--on {text!r} is no fleet ({nearest(engine, NAMED_ENGINES)}); {_FORMS}")


def _settings(engine: str, pairs: str, text: str) -> dict[str, Any]:
    """`nodes=3,time=00:30:00` as a table of that engine; nothing where there are none."""
    settings: dict[str, str] = {}
    for pair in [word.strip() for word in pairs.split(",") if word.strip()]:
        name, equals, value = pair.partition("=")
        if not equals or not value:
            raise SpecError(f"--on {text}: {pair!r} is no setting; write such as {engine}:nodes=3,partition=NAME")
        settings[name.strip()] = value.strip()
    return {engine: settings} if settings else {}


def load_fleet(path: Path) -> Fleet:
    """The fleet of a TOML file; a `python` beside the machines is that of each machine that names none."""
    try:
        values = parse_toml(read_content(path).decode())
    except OSError as error:
        raise SpecError(f"fleet file {path} cannot be read: {error.strerror}; name another with --on") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SpecError(f"fleet file {path} is no TOML: {error}; mend it and try again") from None
    engine, python, machines = values.get("engine", "ssh"), values.get("python"), values.get("machines")
    if engine not in NAMED_ENGINES:
        raise SpecError(f"fleet file {path}: engine cannot be {engine!r}; choose from {', '.join(NAMED_ENGINES)}")
    if python is not None and isinstance(machines, list):
        values["machines"] = [
            {"python": python, **machine} if isinstance(machine, dict) else machine for machine in machines
        ]
    return Fleet.parse({"engine": "ssh", **values}, f"fleet file {path}")


def _hosts_of_file(path: Path) -> list[str]:
    """One host in a line; what follows a # is for people, and so are further words of the line."""
    try:
        lines = read_content(path).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"hosts file {path} cannot be read: {error}; name another with --on ssh:@FILE") from None
    return [line.partition("#")[0].split()[0] for line in lines if line.partition("#")[0].split()]


def _short_name(host: str) -> str:
    """The name of a machine without the user who logs in there."""
    return host.strip().rpartition("@")[2]
