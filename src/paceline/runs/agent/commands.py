"""A command of Paceline on an agent's machine, such as `calibrate`: its words are relayed, and a file that it wrote."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paceline.runs.agent.files import file_parts
from paceline.runs.agent.messages import CommandEnded, CommandSaid, RunCommand

# The command dies with its agent, however that dies.
START = (
    "import os, sys\n"
    "from paceline.runs.processes import die_with\n"
    "die_with(int(sys.argv.pop(1)))\n"
    "from paceline.__main__ import main\n"
    "main()\n"
)


def run_command(order: RunCommand, folder: Path, send: Callable[[Any], None], parent_pid: int) -> None:
    """Runs the command in the agent's folder, relays its progress, and sends its file before its end is told."""
    words = [sys.executable, "-P", "-c", START, str(parent_pid), *order.words]
    last = ""
    with subprocess.Popen(
        words, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        errors="replace",
    ) as process:  # fmt: skip
        assert process.stderr is not None
        for line in process.stderr:
            last = line.strip() or last
            send(CommandSaid(text=line.rstrip("\n")))
    file = folder / order.file
    if process.returncode == 0 and file.is_file():
        for part in file_parts(file, order.file):
            send(part)
    send(CommandEnded(code=process.returncode, last_words=last))
