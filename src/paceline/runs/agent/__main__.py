"""The agent's process: `python -m paceline.runs.agent` talks over its standard input and output.

With `--dial HOST:PORT` it connects to the launcher there instead, and signs what it says with the secret in the
environment variable `PACELINE_AGENT_SECRET`.
"""

import contextlib
import os
import sys

from paceline.runs.agent.channel import AGENT, Channel, ChannelClosedError, SilenceError
from paceline.runs.agent.messages import GREETING
from paceline.runs.agent.session import run_session

# How long the launcher's first message may take: it starts the agents of all machines first.
WELCOME_SECONDS = 60.0


def standard_channel() -> Channel:
    """Standard input and output as a channel; whatever prints from now on goes to standard error."""
    read_fd, write_fd = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    os.write(write_fd, GREETING)
    return Channel(read_fd, write_fd, AGENT)


def main(words: list[str]) -> None:
    """Serves the launcher that started this process, until either of them ends."""
    if words[:1] == ["--dial"]:
        from paceline.runs.agent.dial_back import dial

        channel = dial(words[1])
    else:
        channel = standard_channel()
    with contextlib.suppress(ChannelClosedError, SilenceError, KeyboardInterrupt):
        run_session(channel, WELCOME_SECONDS)


if __name__ == "__main__":
    main(sys.argv[1:])
