"""Input by chance: commands, studies, system files, and requests to the web application."""

import re
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.resources import files

from campaign.case import TOOL, Case, LostError, SkippedError, wait_until
from paceline.cli.app import COMMANDS
from paceline.systems import local_system

ODD = (
    "", "0", "-1", "1e999", "nan", "99999999999999999999", "x" * 300, "\x01", "ü", "..", "/", "/dev/null",
    "~nouser/x.py", "a=b", "=", ",", "1,2", "1..3", "[bold]", ":x:", "fake", "torch-ddp", "mnist-small", "{}",
    "\x1b[31m", "--", "-", "1..100000000", "9" * 5000, "1e400", "-0.0", "true", "none", "all", "128", "1x28x28",
    "3x0x3",
    "shard=2", "shard=99999999999999999999", "100mbit:5ms", "leave:3,join:5", "name=adamw", "schedule=cosine", "lr=nan",
    "depth=1000000000", "1h", "50000h", "8xh100-nvlink", "0xh100-nvlink", "time-to-accuracy", "by-sample", "ssh:-x",
)  # fmt: skip
# Commands that end by themselves and start nothing of their own.
PLAIN = tuple(name for name in COMMANDS if name not in ("serve", "join", "calibrate", "validate"))
OPTIONS = re.compile(r"--[a-z][a-z-]+")
_known_options: dict[str, list[str]] = {}


def fuzz_command(case: Case) -> None:
    """A command with options of its own and odd values."""
    name = case.chance.choice(PLAIN)
    if name not in _known_options:
        said = case.run(name, "--help").out
        _known_options[name] = sorted(set(OPTIONS.findall(said)) - {"--on", "--fleet"})
    words = [name]
    for _ in range(case.chance.randint(1, 4)):
        words.append(case.chance.choice(_known_options[name]))
        words += [case.chance.choice(ODD) for _ in range(case.chance.randint(0, 1))]
    if name == "run":
        words += ["--strategy", "fake", "--dry-run"]
    case.run(*[word.replace("\x00", "") for word in words])


STUDY = """
name = "fuzzed"
about = "something"
repeats = 2
order_seed = 3
[fixed]
strategy = "fake"
workers = 2
global_batch = 64
knobs = { step_ms = 5.0 }
[factors]
steps = [3, 4]
"""


def _changed(case: Case, text: str) -> bytes:
    """The text with a few of its lines, words or bytes changed."""
    content = text
    for _ in range(case.chance.randint(1, 3)):
        lines = content.splitlines()
        at = case.chance.randrange(len(lines))
        match case.chance.randrange(5):
            case 0:
                del lines[at]
            case 1:
                lines.insert(case.chance.randrange(len(lines)), lines[at])
            case 2:
                odd = case.chance.choice((*ODD, "[[[[[[", "1e308", "-0.0", "true", "[]", '"', "[1, 'a']"))
                lines[at] = f"{lines[at].partition('=')[0]}= {odd}"
            case 3:
                lines[at] = f'{lines[at].partition("=")[0]}= "{case.chance.choice(ODD)}"'
            case _:
                place = case.chance.randrange(len(lines[at]) + 1)
                lines[at] = lines[at][:place] + chr(case.chance.randrange(1, 300)) + lines[at][place:]
        content = "\n".join(lines) or "x"
    encoded = content.encode()
    return encoded + case.chance.randbytes(4) if case.chance.random() < 0.1 else encoded


def fuzz_study(case: Case) -> None:
    """A study that is nearly right."""
    (case.folder / "study.toml").write_bytes(_changed(case, STUDY))
    case.run("run", "study.toml", "--dry-run")


def fuzz_system(case: Case) -> None:
    """A system file that is nearly right: one that ships, with a few lines changed."""
    described = sorted(
        (path for path in files("paceline.systems").joinpath("described").iterdir() if path.name.endswith(".toml")),
        key=lambda path: path.name,
    )
    text = case.chance.choice(described).read_text()
    (case.folder / "system.toml").write_bytes(_changed(case, text))
    case.run(
        "predict", "--workload", "mnist-small", "--strategy", "torch-ddp", "--workers", "1,2", "--system",
        "./system.toml",
    )  # fmt: skip


MODEL = """
import os, sys, threading
import torch
from torch import nn
{outside}
def build():
    {inside}
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 16), nn.ReLU(), nn.Linear(16, 10))
def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)
def metric(outputs, targets):
    return {{{name!r}: (outputs.argmax(1) == targets).float().mean()}}
"""
HOSTILE_LINES = (
    "pass", "raise ValueError('\\x1b[31m')", "sys.exit(0)", "os._exit(0)", "os.kill(os.getpid(), 9)", "return None",
    "os.write(1, b'null')", "[os.close(number) for number in range(2)]", "raise KeyboardInterrupt", "return nn.ReLU()",
    "return nn.Linear(1, 10**12)", "return nn.Embedding(3, 4)", "nonsense", "threading.Thread(target=print).start()",
    "os.fork()", "torch.manual_seed(-1)", "sys.setrecursionlimit(50)", "del torch.nn",
)  # fmt: skip
HOSTILE_NAMES = ("right", "\ud800", "\x1b[31m", "=cmd()", "<b>", "n" * 5000, "")


def fuzz_model(case: Case) -> None:
    """A model file with a line that does harm, and a metric with an odd name; nothing of it may be left."""
    if "torch" not in local_system().frameworks:
        raise SkippedError("torch is not installed")
    lines = {"inside": case.chance.choice(HOSTILE_LINES), "outside": "pass"}
    if case.chance.random() < 0.3:
        lines = {
            "inside": "pass",
            "outside": case.chance.choice([line for line in HOSTILE_LINES if "return" not in line]),
        }
    (case.folder / "mine.py").write_text(MODEL.format(**lines, name=case.chance.choice(HOSTILE_NAMES)))
    case.run(
        "run", "--model", "mine.py", "--strategy", "torch-single", "--dataset", "mnist-5k", "--train-samples", "256",
        "--global-batch", "64", "--steps", "2",
    )  # fmt: skip
    case.run("show")
    case.expect_clean()


HOSTS = ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "", "a" * 5000, "[::1", "\x01")
PATHS = (
    "/",
    "/results",
    "/start",
    "/stop/1",
    "/stop/" + "9" * 5000,
    "/figures/energy.svg",
    "/../../etc/passwd",
    "/%00",
    "/events",
)
BODIES = (
    b"", b"x=%00", b"secret=x&model=/etc/passwd", b"&".join(b"f%d=1" % number for number in range(1500)), b"\xff" * 100,
    b"strategy=fake&steps=%00&secret=x", b"[" * 5000,
)  # fmt: skip
REQUESTS = 12
# What somebody sends who then says nothing more, on so many connections.
BEGINNINGS = (b"", b"G", b"GET / HTTP/1.1\r\nHost: 127", b"POST /start HTTP/1.1\r\nContent-Length: 9\r\n\r\nx")
SILENT = 400


def hostile_client(case: Case) -> None:
    """Requests with foreign hosts and origins, and bodies that no form sends: none is obeyed, none ends the server."""
    address = case.folder / "address"
    with address.open("w") as out:
        server = subprocess.Popen(
            [*TOOL, "serve", "--port", "0"], cwd=case.folder, env=case.environment, stdout=out, stderr=out,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    try:
        wait_until(
            lambda: re.search(r"http://[^:/]+:\d+", address.read_text()) or server.poll() is not None, "a server"
        )
        located = re.search(r"http://[^:/]+:(\d+)", address.read_text())
        if located is None:
            raise SkippedError(f"the server does not start here: {address.read_text()[-200:]}")
        with _silent_clients(case, int(located[1])):
            _expect_answer(int(located[1]))
        for _ in range(REQUESTS):
            _try_request(case, int(located[1]))
            if server.poll() is not None:
                raise LostError(f"the server ended with {server.returncode}: {address.read_text()[-300:]}")
        if "Traceback (most" in address.read_text():
            raise LostError(f"a traceback: {address.read_text().strip().splitlines()[-1][:300]}")
    finally:
        server.terminate()
        server.wait()
    case.expect_clean()


@contextmanager
def _silent_clients(case: Case, port: int) -> Iterator[None]:
    """Connections on which a request is begun at most."""
    with ExitStack() as stack:
        for _ in range(SILENT):
            channel = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
            with suppress(ConnectionError):  # the server keeps only so many
                channel.sendall(case.chance.choice(BEGINNINGS))
        yield


def _expect_answer(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as channel:
        channel.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        try:
            answer = channel.recv(200)
        except (TimeoutError, ConnectionError) as error:
            raise LostError(f"no answer beside {SILENT} silent clients: {error}") from None
    if b" 403 " not in answer:
        raise LostError(f"beside {SILENT} silent clients the answer is {answer[:80]!r}")


def _try_request(case: Case, port: int) -> None:
    foreign = case.chance.random() < 0.6
    host = case.chance.choice(HOSTS) if foreign else f"127.0.0.1:{port}"
    method, path, body = case.chance.choice(("GET", "POST")), case.chance.choice(PATHS), case.chance.choice(BODIES)
    head = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
    head += "Content-Type: application/x-www-form-urlencoded\r\n"
    if case.chance.random() < 0.7:
        head += "Origin: http://evil.example\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=60) as channel:
        try:
            channel.sendall(f"{head}\r\n".encode() + body)
            answer = channel.recv(200).decode(errors="replace")
        except (ConnectionError, TimeoutError):
            return
    status = int(answer.split()[1]) if answer.startswith("HTTP/") else 400
    said = f"{method} {path[:40]} with host {host[:40]!r} and body {body[:30]!r}: {status}"
    if status >= 500 or (status < 300 and (method == "POST" or (foreign and host))):
        raise LostError(said)
