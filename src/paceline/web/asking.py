"""A command of Paceline's asked to its end, in a process of its own, as the terminal would ask it."""

import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Said:
    """What it printed, and how it ended; no code where it took too long."""

    code: int | None
    out: str
    err: str


async def ask(words: Sequence[str], seconds: float) -> Said:
    """Waits for the answer, but not longer than so many seconds."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "paceline", *words,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        start_new_session=True, env={**os.environ, "COLUMNS": "100", "NO_COLOR": "1"},
    )  # fmt: skip
    try:
        out, err = await asyncio.wait_for(process.communicate(), seconds)
    except TimeoutError:
        return Said(None, "", f"there was no answer within {seconds:.0f} s; try it in the terminal")
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    return Said(process.returncode, out.decode(errors="replace"), err.decode(errors="replace"))
