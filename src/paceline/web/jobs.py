"""Commands that were started here, one after another, each in its own process: studies, and questions that measure.

Two at once would disturb each other's times. One is stopped as Ctrl-C would stop it; if this server is killed, its
command notices at its next event that nobody reads any more, and stops in the same way.
"""

import asyncio
import itertools
import signal
from collections.abc import Sequence

from paceline.errors import UserError
from paceline.web.commands import start_command
from paceline.web.job import Job, State

# What the exit code of `paceline run` says.
ENDINGS: dict[int, State] = {0: "done", 1: "some failed", 2: "refused", 130: "stopped"}
# How long a study may take to end its run and store what it has before it is killed.
PATIENCE_SECONDS = 20.0
LONGEST_LINE_BYTES = 1 << 20
MOST_OUTPUT_BYTES = 1 << 23
# Commands that are kept after their end, and that may wait for their turn.
MOST_ENDED, MOST_WAITING = 30, 50


class Jobs:
    """The queue; only the event loop's thread uses it."""

    def __init__(self) -> None:
        self.all: list[Job] = []
        self.revision = 0
        self._numbers = itertools.count(1)
        self._changed = asyncio.Event()
        self._worker: asyncio.Task[None] | None = None

    def start(self, arguments: Sequence[str], form: str = "", answer_at: str = "") -> Job:
        """Puts a command at the end of the queue; in `answer_at`, where its answer is shown, `{}` is its number."""
        waiting = sum(job.state == "waiting" for job in self.all)
        if waiting >= MOST_WAITING:
            raise UserError(f"{waiting} studies wait for their turn already; stop some, or start it when they are done")
        number = next(self._numbers)
        job = Job(number, tuple(arguments), form, answer_at.format(number))
        self.all.append(job)
        self._notify(job)
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        return job

    def find(self, number: str) -> Job | None:
        """The command of that number, as an address has it; None where there is none, or none any more."""
        return next((job for job in self.all if str(job.number) == number), None)

    def stop(self, job: Job) -> None:
        """Stops a command: at once if it waits, as Ctrl-C would if it runs."""
        if job.state == "waiting":
            job.state = "stopped"
        elif job.state == "running":
            job.state = "stopping"
            _signal(job, signal.SIGINT)
        self._notify(job)

    async def changed(self, seconds: float) -> None:
        """Returns when something changed, or after so many seconds."""
        try:
            await asyncio.wait_for(self._changed.wait(), seconds)
        except TimeoutError:
            return

    async def close(self) -> None:
        """Stops all commands and waits until they have ended."""
        for job in [job for job in self.all if job.open]:
            self.stop(job)
        if self._worker is not None:
            _, late = await asyncio.wait([self._worker], timeout=PATIENCE_SECONDS)
            for job in self.all if late else ():
                _signal(job, signal.SIGKILL)
            await self._worker

    async def _work(self) -> None:
        while job := next((job for job in self.all if job.state == "waiting"), None):
            job.state = "running"
            self._notify(job)
            try:
                code = await self._run(job)
            except (OSError, ValueError) as error:
                code = None
                job.messages.append(str(error))
            job.state = "broken" if code is None else ENDINGS.get(code, "broken")
            job.process = None
            self._notify(job)

    async def _run(self, job: Job) -> int:
        arguments = [*job.arguments, *(["--json"] if job.answer_at else []), "--progress=json"]
        kept = asyncio.subprocess.PIPE if job.answer_at else asyncio.subprocess.DEVNULL
        job.process = await start_command(arguments, 120, stdout=kept, limit=LONGEST_LINE_BYTES)
        answer = asyncio.create_task(_whole_output(job.process))
        assert job.process.stderr is not None
        async for line in job.process.stderr:
            job.read_line(line.decode(errors="replace"))
            self._notify(job)
        job.output = await answer
        return await job.process.wait()

    def _notify(self, job: Job) -> None:
        self.revision += 1
        job.revision = self.revision
        ended = [job for job in self.all if not job.open]
        for old in ended[: max(0, len(ended) - MOST_ENDED)]:
            self.all.remove(old)
        self._changed.set()
        self._changed = asyncio.Event()


async def _whole_output(process: asyncio.subprocess.Process) -> str:
    """What the command prints; nothing of what is longer than any answer."""
    if process.stdout is None:
        return ""
    parts, length = [], 0
    while part := await process.stdout.read(LONGEST_LINE_BYTES):
        length += len(part)
        parts.append(part if length <= MOST_OUTPUT_BYTES else b"")
    return b"".join(parts).decode(errors="replace") if length <= MOST_OUTPUT_BYTES else ""


def _signal(job: Job, number: signal.Signals) -> None:
    if job.process is not None and job.process.returncode is None:
        job.process.send_signal(number)
