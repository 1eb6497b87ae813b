"""Machines for tests: network namespaces that a bridge joins, each with an sshd of its own and throw-away keys.

The bridge is in a namespace of its own, so that the network of the computer itself is left alone. Needs root, iproute2
and openssh-server.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

PATIENCE_SECONDS = 60.0
# Runs a command that sees another folder in the place of one: no disk is shared there.
WITHOUT = ("sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"')
SSHD_CONFIG = """
Port 22
ListenAddress {address}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/client_key.pub
PidFile {folder}/{name}.pid
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
PrintMotd no
PermitRootLogin yes
SetEnv PYTHONPATH={python_path} TMPDIR={folder}/tmp-{name} JAX_COMPILATION_CACHE_DIR={compiled} {more}
"""
SSH_CONFIG = """
Host {names}
  User root
  IdentityFile {folder}/client_key
  IdentitiesOnly yes
  StrictHostKeyChecking no
  UserKnownHostsFile /dev/null
  GlobalKnownHostsFile /dev/null
  LogLevel ERROR
"""


def why_not() -> str | None:
    """Why there can be no such machines here, or None."""
    if os.geteuid() != 0:
        return "machines of tests are network namespaces, which need root"
    missing = [name for name in ("ip", "ssh", "ssh-keygen") if shutil.which(name) is None]
    if missing:
        return f"machines of tests need {missing[0]} (iproute2, openssh-client)"
    if not Path("/usr/sbin/sshd").exists():
        return "machines of tests need /usr/sbin/sshd (openssh-server)"
    trial = subprocess.run(["unshare", "-n", "true"], capture_output=True, check=False)
    return f"network namespaces cannot be made here: {trial.stderr.decode().strip()}" if trial.returncode else None


def required_or_skipped() -> None:
    """Skips the test where there can be no machines; fails it where `make test REQUIRE=machines` insists on them."""
    reason = why_not()
    if reason is not None and "machines" in os.environ.get("PACELINE_REQUIRE", "").split(","):
        pytest.fail(reason)
    if reason is not None:
        pytest.skip(reason)


def run(*words: str) -> None:
    """Runs a command that has to succeed."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"


@dataclass
class NetworkOfMachines:
    """Some machines of tests: their names, and the namespace from which they are reached."""

    names: list[str]
    folder: Path
    prefix: str
    daemons: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    @property
    def launcher(self) -> str:
        """The namespace of whoever uses the machines: that of the bridge."""
        return f"{self.prefix}bridge"

    @property
    def ssh(self) -> str:
        """The command that reaches them, for `$PACELINE_SSH`."""
        return f"ip netns exec {self.launcher} ssh -F {self.folder}/ssh_config"

    @property
    def private(self) -> Path:
        """A folder that whoever uses the machines has, and the machines have not."""
        return self.folder / "private"

    def address(self, name: str) -> str:
        """Where a machine is."""
        return f"10.77.0.{self.names.index(name) + 1}"

    def inside(self, name: str, *words: str) -> list[str]:
        """A command to be run on a machine."""
        return ["ip", "netns", "exec", f"{self.prefix}{name}", *words]

    def cut(self, name: str) -> None:
        """Cuts the link of a machine: nothing comes and nothing goes, and nobody is told."""
        run("ip", "-n", self.launcher, "link", "set", f"to-{name}", "nomaster")

    def mend(self, name: str) -> None:
        """Puts the link back."""
        run("ip", "-n", self.launcher, "link", "set", f"to-{name}", "master", "bridge")

    def processes(self, name: str) -> list[int]:
        """Processes on a machine, beside its sshd."""
        listed = subprocess.run(
            ["ip", "netns", "pids", f"{self.prefix}{name}"], capture_output=True, text=True, check=True
        )
        ours = [int(word) for word in listed.stdout.split()]
        return [pid for pid in ours if "paceline" in _command_line(pid)]

    def folders(self, name: str) -> list[str]:
        """What Paceline has in the temporary folder of a machine."""
        return sorted(path.name for path in (self.folder / f"tmp-{name}").glob("paceline-*"))


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


@contextmanager
def machines(*names: str, environment: dict[str, str] | None = None) -> Iterator[NetworkOfMachines]:
    """Machines that can be reached by ssh, gone when the context ends."""
    prefix = f"pl{os.getpid()}-"
    with ExitStack() as stack:
        # In /tmp itself: names of sockets must be short.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="plm-", ignore_cleanup_errors=True)))
        network = NetworkOfMachines(list(names), folder, prefix)
        network.private.mkdir()
        for key in ("host_key", "client_key"):
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key))
        _namespace(stack, network.launcher)
        run("ip", "-n", network.launcher, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", network.launcher, "addr", "add", "10.77.0.254/24", "dev", "bridge")
        run("ip", "-n", network.launcher, "link", "set", "bridge", "up")
        for name in names:
            _plug_in(stack, network, name)
        hosts = "".join(f"\nHost {name}\n  HostName {network.address(name)}\n" for name in names)
        text = SSH_CONFIG.format(names=" ".join(names), folder=folder)
        (folder / "ssh_config").write_text(text + hosts)
        for name in names:
            _start_sshd(stack, network, name, environment or {})
        yield network


def _namespace(stack: ExitStack, name: str) -> None:
    run("ip", "netns", "add", name)
    stack.callback(subprocess.run, ["ip", "netns", "delete", name], check=False)
    run("ip", "-n", name, "link", "set", "lo", "up")


def _plug_in(stack: ExitStack, network: NetworkOfMachines, name: str) -> None:
    space, bridge = f"{network.prefix}{name}", network.launcher
    _namespace(stack, space)
    run("ip", "-n", bridge, "link", "add", f"to-{name}", "type", "veth", "peer", "name", "eth0", "netns", space)
    run("ip", "-n", bridge, "link", "set", f"to-{name}", "master", "bridge", "up")
    run("ip", "-n", space, "addr", "add", f"{network.address(name)}/24", "dev", "eth0")
    run("ip", "-n", space, "link", "set", "eth0", "up")


def _start_sshd(stack: ExitStack, network: NetworkOfMachines, name: str, environment: dict[str, str]) -> None:
    config = network.folder / f"sshd_config_{name}"
    (network.folder / f"tmp-{name}").mkdir()
    config.write_text(
        SSHD_CONFIG.format(
            address=network.address(name), folder=network.folder, name=name,
            python_path=os.environ.get("PYTHONPATH") or ":".join(path for path in sys.path if path.endswith("src")),
            compiled=os.environ.get("JAX_COMPILATION_CACHE_DIR", network.folder / "xla"),
            more=" ".join(f"{key}={value}" for key, value in environment.items()),
        )
    )  # fmt: skip
    Path("/run/sshd").mkdir(exist_ok=True)
    log = network.folder / f"sshd-{name}.log"
    with log.open("wb") as output:
        daemon = subprocess.Popen(
            network.inside(name, *WITHOUT, str(network.private), "/usr/sbin/sshd", "-D", "-e", "-f", str(config)),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=output,
        )  # fmt: skip
    network.daemons.append(daemon)

    def end() -> None:
        daemon.terminate()
        daemon.wait(timeout=PATIENCE_SECONDS)

    stack.callback(end)
    until = time.monotonic() + PATIENCE_SECONDS
    while "Server listening" not in log.read_text():
        assert time.monotonic() < until and daemon.poll() is None, log.read_text()
        time.sleep(0.02)
