"""The process that traces steps: `python -m paceline.runs.tracer PID FD MARK` reads requests as lines and answers so.

Importing PyTorch takes longer than most traces. So one process does that and is kept until this one ends. It forks a
process for each request: what one trace leaves behind, a user's code or garbage that nobody has collected yet, would
change the peaks of the next.
"""

import atexit
import contextlib
import os
import secrets
import select
import subprocess
import sys
import tempfile
import threading
import time

from paceline.runs.processes import die_with

if __name__ == "__main__":
    # Before the other imports: a tool that is killed meanwhile must leave nobody alive.
    die_with(int(sys.argv[1]))

from pydantic import ValidationError

from paceline.contract.trace import Trace
from paceline.errors import UserError
from paceline.runs.wire import TraceReply, TraceRequest
from paceline.spec import RunSpec

PATIENCE_SECONDS = 120.0
CLOSING_SECONDS = 5.0
PIECE_BYTES, MARK_BYTES = 1 << 16, 16


class Tracer:
    """A process that traces steps; replies have a pipe of their own, as models may print what they like."""

    def __init__(self) -> None:
        """Starts it; its import goes on while requests are made."""
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._replies, answering = os.pipe()
        # A model may write into any descriptor that it finds: a reply is what follows this.
        self._mark = secrets.token_hex(MARK_BYTES)
        words = [sys.executable, "-P", "-m", __name__, str(os.getpid()), str(answering), self._mark]
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=self._log, stderr=self._log, pass_fds=(answering,)
        )
        os.close(answering)

    def traces(self, request: TraceRequest) -> tuple[Trace | str, ...]:
        """A trace of each step, or why there is none."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(request.model_dump_json().encode() + b"\n")
            self._process.stdin.flush()
        try:
            line = self._line(time.monotonic() + PATIENCE_SECONDS)
        except TimeoutError:
            self.close(at_once=True)
            return (f"its step could not be followed within {PATIENCE_SECONDS:g} s",) * len(request.specs)
        try:
            return TraceReply.model_validate_json(line).traces
        except ValidationError:
            code = self._exit_code()
            reason = f"following its step ended the process (exit code {code}): {self._last_words()}"
            self.close()
            return (reason,) * len(request.specs)

    def _line(self, until: float) -> bytes:
        """The next reply; what there is of it where the process has ended."""
        mark, before, pieces = self._mark.encode(), b"", list[bytes]()
        while not (pieces and pieces[-1].endswith(b"\n")):
            ready, _, _ = select.select([self._replies], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                raise TimeoutError
            piece = os.read(self._replies, PIECE_BYTES)
            if not piece:
                break
            if pieces:
                pieces.append(piece)
                continue
            _, begun, reply = (before + piece).partition(mark)
            pieces += [reply] if begun else []
            before = (before + piece)[-len(mark) :]
        return b"".join(pieces)

    def _exit_code(self) -> int:
        """How the process ended; one that goes on after half a reply is ended."""
        try:
            return self._process.wait(CLOSING_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def _last_words(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace").strip().rpartition("\n")[2]

    @property
    def alive(self) -> bool:
        """Whether it can be asked for more."""
        return self._process.poll() is None and self._process.stdin is not None and not self._process.stdin.closed

    def close(self, at_once: bool = False) -> None:
        """Ends the process, which would end with this one in any case."""
        if self._process.stdin is None or self._process.stdin.closed:
            return
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        if at_once:
            self._process.kill()
        try:
            self._process.wait(CLOSING_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._replies)
        self._log.close()


# By the number of the process that started it: a fork has none of its own yet.
_kept: dict[int, Tracer] = {}
# Threads ask one after another: replies have no names.
_asking = threading.Lock()


def trace_steps(request: TraceRequest) -> tuple[Trace | str, ...]:
    """A trace of each step, or why there is none."""
    with _asking:
        kept = _kept.get(os.getpid())
        if kept is None or not kept.alive:
            kept = _kept[os.getpid()] = Tracer()
            atexit.register(kept.close, at_once=True)
        return kept.traces(request)


def _trace_or_reason(spec: RunSpec, request: TraceRequest) -> Trace | str:
    from paceline.frameworks.torch.trace.step import trace_step

    try:
        return trace_step(spec, request.gpu, request.keeps_calls)
    except UserError as error:
        return str(error)
    except Exception as error:  # what a model raises on tensors without numbers can be anything
        return f"its step needs real numbers ({type(error).__name__}: {str(error).partition(chr(10))[0]})"


def serve(answering: int, mark: str) -> None:
    """The whole process: a reply for each line, until there are no more."""
    # Imported before the first fork.
    import paceline.frameworks.torch.trace.step  # noqa: F401

    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            die_with(os.getppid())
            # Further requests are none of the model's.
            os.dup2(os.open(os.devnull, os.O_RDONLY), sys.stdin.fileno())
            _answer(line, answering, mark)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            # Nothing, or half a reply: whoever asked is told by the end of this process.
            os._exit(abs(os.waitstatus_to_exitcode(status)))


def _answer(line: str, answering: int, mark: str) -> None:
    request = TraceRequest.model_validate_json(line)
    reply = TraceReply(traces=tuple(_trace_or_reason(spec, request) for spec in request.specs))
    with open(answering, "wb", closefd=False) as replies:
        replies.write(mark.encode() + reply.model_dump_json().encode() + b"\n")


if __name__ == "__main__":
    serve(int(sys.argv[2]), sys.argv[3])
    os._exit(0)
