"""Runs a command of Paceline in its own process, as a terminal would, and waits for its output."""

import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class CommandResult:
    """What a command printed, and its exit code; no code if it took too long."""

    code: int | None
    out: str
    err: str


async def start_command(arguments: Sequence[str], columns: int, **options: Any) -> asyncio.subprocess.Process:
    """Starts `paceline` with these arguments, apart from the terminal, whose Ctrl-C is for the server."""
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "paceline", *arguments, stdin=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE, start_new_session=True,
        env={**os.environ, "COLUMNS": str(columns), "NO_COLOR": "1"}, **options,
    )  # fmt: skip


async def run_command(arguments: Sequence[str], seconds: float) -> CommandResult:
    """Runs `paceline` with these arguments, for at most so many seconds."""
    process = await start_command(arguments, 100, stdout=asyncio.subprocess.PIPE)
    try:
        out, err = await asyncio.wait_for(process.communicate(), seconds)
    except TimeoutError:
        return CommandResult(None, "", f"there was no answer within {seconds:.0f} s; try it in the terminal")
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    return CommandResult(process.returncode, out.decode(errors="replace"), err.decode(errors="replace"))
