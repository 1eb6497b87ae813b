"""Python without waiting for its imports: programs that tests start are forked from a process that has made them.

`Interpreter` has a folder of programs (`python`, `torchrun`) for a PATH. Each is a small client that hands its words,
environment, folder and terminal to the process with the imports, and ends as the program that is forked there ends.
`python interpreters.py SOCKET MODULE...` is the process with the imports.
"""

import contextlib
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

POLL_SECONDS = 0.01
MESSAGE_BYTES = 1 << 16
# Longer than any import takes on a slow and busy machine.
IMPORT_SECONDS = 240.0
CLIENT = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as channel:
    channel.connect({address!r})
    request = {{**{fixed!r}, "environment": dict(os.environ), "folder": os.getcwd(), "parent": os.getppid()}}
    request["words"] = [*request["words"], *sys.argv[1:]]
    socket.send_fds(channel, [json.dumps(request).encode() + b"\\n"], [0, 1, 2])
    code = int(channel.recv(16) or 1)
if code < 0:
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


class Interpreter:
    """A process with modules imported, and the programs that are forked from it."""

    def __init__(self, *modules: str, environment: dict[str, str] | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="interpreter-")
        self.programs, self._address = Path(self._folder.name), f"{self._folder.name}/socket"
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__, self._address, *modules],
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        self.python = self.programs / "python"
        self._write("python", [], self.python)
        self._write("torchrun", [], self.python)
        deadline = time.monotonic() + IMPORT_SECONDS
        while not Path(self._address).exists():
            assert self._process.poll() is None and time.monotonic() < deadline, f"no Python with {modules}"
            time.sleep(POLL_SECONDS)

    def command(self, script: Path, executable: Path = Path(sys.executable)) -> Path:
        """The script as a program, for whose own children Python is the real one, or another."""
        return self._write(script.name, [str(script)], executable)

    def _write(self, name: str, words: list[str], executable: Path) -> Path:
        fixed = {"program": name, "words": words, "executable": str(executable)}
        path = self.programs / name
        path.write_text(CLIENT.format(python=sys.executable, address=self._address, fixed=fixed))
        path.chmod(0o755)
        return path

    def close(self) -> None:
        """Ends it and all that is forked from it."""
        self._process.terminate()
        self._process.wait()
        self._folder.cleanup()


def serve(listener: socket.socket) -> None:
    """Forks a process for each client, tells the client how it ended, and kills it when the client has gone."""
    running: dict[int, socket.socket] = {}
    try:
        while True:
            for ready in select.select([listener, *running.values()], [], [], POLL_SECONDS)[0]:
                if ready is listener:
                    client = listener.accept()[0]
                    running[_fork(client)] = client
                else:
                    _kill(next(pid for pid, client in running.items() if client is ready))
            for pid in list(running):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    with running.pop(pid) as client, contextlib.suppress(OSError):
                        client.send(str(os.waitstatus_to_exitcode(status)).encode())
    finally:
        for pid in running:
            _kill(pid)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _fork(client: socket.socket) -> int:
    message, fds, _flags, _address = socket.recv_fds(client, MESSAGE_BYTES, 3)
    while not message.endswith(b"\n"):
        message += client.recv(MESSAGE_BYTES)
    pid = os.fork()
    if pid == 0:
        _leave(lambda: _become(json.loads(message), fds))
    with contextlib.suppress(OSError):
        os.setpgid(pid, pid)
    for fd in fds:
        os.close(fd)
    return pid


def _become(request: dict[str, Any], fds: list[int]) -> None:
    """Turns this process into the program that a client asks for."""
    os.setpgid(0, 0)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.executable = request["executable"]
    # A process that is to die with the one that asked for it takes a look at who that is.
    os.getppid = lambda: request["parent"]
    if request["program"] == "torchrun":
        _run_workers(request["words"])
    else:
        _run(request["words"])


def _run(words: list[str]) -> None:
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(":") if path]
    if words[0] == "-c":
        sys.argv, sys.path[:] = ["-c", *words[2:]], ["", *paths, *_LIBRARIES]
        exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})
    elif words[:2] == ["-P", "-m"]:
        sys.argv, sys.path[:] = words[2:], [*paths, *_LIBRARIES]
        runpy.run_module(words[2], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[:] = words, [str(Path(words[0]).resolve().parent), *paths, *_LIBRARIES]
        runpy.run_path(words[0], run_name="__main__")


def _run_workers(words: list[str]) -> None:
    """`torchrun --standalone --nproc-per-node COUNT SCRIPT`: workers that the same variables tell who they are."""
    assert words[:2] == ["--standalone", "--nproc-per-node"], words
    count, script = int(words[2]), words[3:]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
    pids = []
    for rank in range(count):
        pids.append(os.fork())
        if pids[-1] == 0:
            os.environ.update(
                {name: str(value) for name, value in {**shared, "RANK": rank, "LOCAL_RANK": rank}.items()}
            )
            _leave(lambda: _run(script))
    while pids:
        pid, status = os.wait()
        pids.remove(pid)
        if status:
            for other in pids:
                os.kill(other, signal.SIGKILL)
            sys.exit(1)


def _leave(program: Any) -> None:
    """Runs it and ends this process, as the interpreter would."""
    code: Any = 0
    try:
        program()
    except SystemExit as asked:
        code = asked.code
        if isinstance(code, str):
            sys.stderr.write(f"{code}\n")
            code = 1
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    os._exit(code or 0)


# Where modules are found, without what the tests themselves are given.
_LIBRARIES = [path for path in sys.path if path not in os.environ.get("PYTHONPATH", "").split(":")]

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_signal: sys.exit(0))
    for module in sys.argv[2:]:
        importlib.import_module(module)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(sys.argv[1])
        listening.listen()
        serve(listening)
