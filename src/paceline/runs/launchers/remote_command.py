"""A command of Paceline on the first machine of a fleet, and the links between its machines."""

from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from statistics import median

from paceline.errors import UserError
from paceline.runs.agent.files import keep_part
from paceline.runs.agent.messages import CommandEnded, CommandSaid, FilePart, RunCommand
from paceline.runs.agent.session import MODELS
from paceline.runs.launchers.agents import LostAgentError
from paceline.runs.launchers.examine import measure_link
from paceline.runs.launchers.open_fleet import OpenFleet
from paceline.spec import ModelFile


def run_remotely(fleet: OpenFleet, words: Sequence[str], file: Path, say: Callable[[str], None]) -> None:
    """Runs the command on the first machine and brings the file back that it writes; raises `UserError` if it fails."""
    agent = fleet.agents[0]
    agent.send(RunCommand(words=tuple(words), file=file.name))
    try:
        while not isinstance(message := agent.await_answer(object), CommandEnded):
            if isinstance(message, CommandSaid):
                say(message.text)
            elif isinstance(message, FilePart):
                keep_part(message, file.parent)
            else:
                agent.complain_about(message)
    except LostAgentError as error:
        raise UserError(str(error)) from None
    if message.code:
        raise UserError(f"on machine {agent.name}: {message.last_words.removeprefix('paceline: ')}")


def send_model(fleet: OpenFleet, text: str) -> str:
    """Sends the user's model file to the first machine; how the command there names it."""
    model = ModelFile.from_text(text)
    fleet.send_model(fleet.agents[0], model)
    return f"{MODELS}/{model.digest}/{model.path.name}:{model.function}"


def slowest_link(fleet: OpenFleet, say: Callable[[str], None]) -> tuple[float, float] | None:
    """Bytes per second of the slowest link between two machines, and the middle latency; None for one machine."""
    rates, trips = list[float](), list[float]()
    for agent, other in combinations(fleet.agents, 2):
        say(f"measuring the link between {agent.name} and {other.name}")
        link = measure_link(agent, other)
        if link.bytes_per_second is None or link.round_trip_seconds is None:
            raise UserError(f"machine {agent.name} cannot reach machine {other.name}: {link.reason}")
        rates.append(link.bytes_per_second)
        trips.append(link.round_trip_seconds)
    return (min(rates), median(trips) / 2) if rates else None
