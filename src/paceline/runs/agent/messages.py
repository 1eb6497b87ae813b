"""What crosses between a launcher and the agents of its fleet; the values of a run itself are those of `wire.py`."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter

from paceline.runs.wire import MachineReport, Message, Published, RankReport, RunNews, RunOrders
from paceline.systems.local import Gpu

# The first that an agent writes: whatever a login shell printed before it is passed over.
GREETING = b"\npaceline-agent-1\n"


class Beat(Message):
    """Says that its sender is there."""

    kind: Literal["beat"] = "beat"


class Dialled(Message):
    """The first message of an agent that dialled: its number, signed with its secret."""

    kind: Literal["dialled"] = "dialled"
    number: int


class Welcome(Message):
    """The launcher's first message: what the agent's machine is called and how long either side may be silent."""

    kind: Literal["welcome"] = "welcome"
    machine: int
    name: str
    lease_seconds: float
    # As the fleet has them; None where the agent is to find out.
    address: str | None = None
    interface: str | None = None
    # Variables that options of the launcher set.
    environment: dict[str, str] = {}


class MachineFacts(Message):
    """The agent's first message: where its machine is and what it has."""

    kind: Literal["facts"] = "facts"
    pid: int
    host: str
    # The same for two agents of one host.
    boot_id: str
    address: str
    interface: str
    paceline: str
    python: str
    frameworks: dict[str, str]
    cpu: str
    cores: tuple[int, ...]
    memory_bytes: int
    gpus: tuple[Gpu, ...] = ()
    environment: dict[str, Any] = {}
    # Digests of data sets that are there, by name.
    data: dict[str, str] = {}


class Ping(Message):
    """Asks for the time."""

    kind: Literal["ping"] = "ping"
    number: int


class Pong(Message):
    """When a ping came and when its answer left, on the agent's clock."""

    kind: Literal["pong"] = "pong"
    number: int
    received: int
    replied: int


class FilePart(Message):
    """A part of a file, for the other side's folder; a file begins with its first part and ends with its last."""

    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    kind: Literal["file"] = "file"
    name: str
    data: bytes
    first: bool
    last: bool


class OpenRun(Message):
    """Asks for everything that a run needs before its time begins."""

    kind: Literal["open"] = "open"
    orders: RunOrders
    # Whether its processes are forked from a server that the next runs will use, too.
    forked: bool


class RunOpen(Message):
    """The run can start; the machine of rank 0 says at which port the processes meet."""

    kind: Literal["opened"] = "opened"
    port: int | None


class StartRun(Message):
    """Starts the processes, which meet at that address."""

    kind: Literal["start"] = "start"
    host: str
    port: int


class RunEvent(Message):
    """News of a run: what a process reported, or what could be seen of it."""

    kind: Literal["event"] = "event"
    event: Annotated[RunNews, Field(discriminator="kind")]


class Codes(Message):
    """The exit codes of processes that have ended, by rank."""

    kind: Literal["codes"] = "codes"
    codes: dict[int, int]


class EndRun(Message):
    """Ends every process of the run and asks what they left."""

    kind: Literal["end"] = "end"
    weights: bool


class RunEnded(Message):
    """What the processes of a machine left, by rank, and what its meters read."""

    kind: Literal["ended"] = "ended"
    reports: dict[int, RankReport | None]
    log_tails: dict[int, str]
    machine: MachineReport


class Trouble(Message):
    """Why the agent could not do what it was asked to."""

    kind: Literal["trouble"] = "trouble"
    text: str
    # Whether the user can mend it.
    user: bool = False


class ListenForLink(Message):
    """Asks the agent to take in bytes from others, so that they can measure their link to it."""

    kind: Literal["listen"] = "listen"


class Listening(Message):
    """The port for that, and the word that connections to it begin with."""

    kind: Literal["listening"] = "listening"
    port: int
    word: str


class MeasureLink(Message):
    """Asks the agent to measure its link to another machine that listens."""

    kind: Literal["measure"] = "measure"
    address: str
    port: int
    word: str


class LinkMeasured(Message):
    """How fast bytes went and how long a short message took there and back; None, with the reason, where none went."""

    kind: Literal["link"] = "link"
    bytes_per_second: float | None = None
    round_trip_seconds: float | None = None
    reason: str | None = None


class RunCommand(Message):
    """Asks for a command of Paceline, and for the file that it writes into the agent's folder."""

    kind: Literal["command"] = "command"
    words: tuple[str, ...]
    file: str


class CommandSaid(Message):
    """A line that the command printed."""

    kind: Literal["said"] = "said"
    text: str


class CommandEnded(Message):
    """The command's exit code and the last that it printed."""

    kind: Literal["command_ended"] = "command_ended"
    code: int
    last_words: str


class Leave(Message):
    """The study is over."""

    kind: Literal["leave"] = "leave"


ToAgent = Annotated[
    Beat
    | Welcome
    | Ping
    | FilePart
    | OpenRun
    | StartRun
    | Published
    | EndRun
    | ListenForLink
    | MeasureLink
    | RunCommand
    | Leave,
    Field(discriminator="kind"),
]
FromAgent = Annotated[
    Beat
    | Dialled
    | MachineFacts
    | Pong
    | FilePart
    | RunOpen
    | RunEvent
    | Published
    | Codes
    | RunEnded
    | Trouble
    | Listening
    | LinkMeasured
    | CommandSaid
    | CommandEnded,
    Field(discriminator="kind"),
]
TO_AGENT: TypeAdapter[Any] = TypeAdapter(ToAgent)
FROM_AGENT: TypeAdapter[Any] = TypeAdapter(FromAgent)
