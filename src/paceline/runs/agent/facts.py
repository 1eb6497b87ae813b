"""What a machine says of itself: where it is, what it has, which data sets are there."""

import hashlib
import os
import platform
import socket

import psutil

from paceline.contract.context import LOOPBACK, LOOPBACK_INTERFACE
from paceline.data import data_sources
from paceline.errors import UserError
from paceline.runs.agent.messages import MachineFacts, Welcome
from paceline.runs.meters.environment import environment
from paceline.runs.meters.machine import boot_id
from paceline.systems import local_system
from paceline.systems.local import framework_version

# Set by sshd: the client's address and port, then this machine's own, as the client reached it (ssh(1)).
SSH_CONNECTION = "SSH_CONNECTION"


def machine_facts(welcome: Welcome) -> MachineFacts:
    """All that the launcher has to know of this machine."""
    system = local_system()
    address, interface = find_address(welcome)
    return MachineFacts(
        pid=os.getpid(), host=platform.node(), boot_id=boot_id(), address=address, interface=interface,
        paceline=str(framework_version("paceline")), python=platform.python_version(), frameworks=system.frameworks,
        cpu=system.cpu, cores=system.cores, memory_bytes=system.memory_bytes, gpus=system.gpus,
        environment=environment(), data=data_digests(),
    )  # fmt: skip


def find_address(welcome: Welcome) -> tuple[str, str]:
    """Where the other machines reach this one: as the fleet says, else as the launcher did, and the interface of it."""
    by_interface = {
        name: [entry.address for entry in entries if entry.family == socket.AF_INET]
        for name, entries in psutil.net_if_addrs().items()
    }
    if welcome.interface is not None and welcome.address is None:
        addresses = by_interface.get(welcome.interface)
        if not addresses:
            known = ", ".join(sorted(name for name, here in by_interface.items() if here))
            raise UserError(
                f"machine {welcome.name} has no interface {welcome.interface!r} with an IPv4 address; it has {known}"
            )
        return addresses[0], welcome.interface
    address = welcome.address or _reached_at(by_interface)
    interface = next((name for name, addresses in by_interface.items() if address in addresses), None)
    if interface is None:
        here = ", ".join(entry for addresses in by_interface.values() for entry in addresses)
        raise UserError(f"machine {welcome.name} has no address {address}; it has {here}: mend its line of the fleet")
    return address, welcome.interface or interface


def _reached_at(by_interface: dict[str, list[str]]) -> str:
    words = os.environ.get(SSH_CONNECTION, "").split()
    address = words[2] if len(words) > 2 else None
    if address is None or ":" not in address:
        return address or LOOPBACK
    # Reached over IPv6: runs meet over IPv4, at the same interface.
    same = [
        name
        for name, entries in psutil.net_if_addrs().items()
        if any(entry.address.partition("%")[0] == address.partition("%")[0] for entry in entries)
    ]
    addresses = [entry for name in same or [LOOPBACK_INTERFACE] for entry in by_interface.get(name, [])]
    return addresses[0] if addresses else LOOPBACK


def data_digests() -> dict[str, str]:
    """Each data set that is here by its name, with a digest of its files; generated data has none to differ in."""
    digests = {}
    for name, source in data_sources().items():
        files = source.files()
        if files is not None:
            digest = hashlib.sha256()
            for file in files:
                digest.update(file.read_bytes())
            digests[name] = digest.hexdigest()
    return digests
