"""Network namespaces without names: they live as long as a process in them or an open file of them, and no longer.

Python 3.12 has these system calls in `os`; earlier versions need the C library.
"""

import contextlib
import ctypes
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from paceline.runs.processes import die_with

# unshare(2), setns(2)
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
ANY_NAMESPACE = 0
PR_SET_DUMPABLE = 4  # prctl(2)
OWN_NETWORK, OWN_USER = "/proc/self/ns/net", "/proc/self/ns/user"


def unshare(flags: int) -> None:
    """Moves the calling process into new namespaces of these kinds."""
    _call("unshare", flags)


def set_namespace(fd: int) -> None:
    """Moves the calling process into the namespace of that open file."""
    _call("setns", fd, ANY_NAMESPACE)


def new_network() -> int:
    """An open file of a new network namespace, which the calling process is in from now on."""
    unshare(CLONE_NEWNET)
    return os.open(OWN_NETWORK, os.O_RDONLY | os.O_CLOEXEC)


def become_root_of_own_user_namespace() -> int:
    """Gives a user without rights those over the networks that it makes; an open file of the new user namespace."""
    user, group, parent_pid = os.getuid(), os.getgid(), os.getppid()
    unshare(CLONE_NEWUSER)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    # A process that gained rights may not be looked at by its user; those that enter its namespaces have to.
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1)
    _stay_tied_to(parent_pid)
    return os.open(OWN_USER, os.O_RDONLY | os.O_CLOEXEC)


@contextlib.contextmanager
def inside(namespace_fd: int) -> Iterator[None]:
    """Lets the calling process, and what it starts, act in that network namespace while the context lasts."""
    with open_namespace(OWN_NETWORK) as outside:
        set_namespace(namespace_fd)
        try:
            yield
        finally:
            set_namespace(outside)


@contextlib.contextmanager
def open_namespace(path: str) -> Iterator[int]:
    """An open file of the namespace at that path."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def enter(paths: Sequence[str]) -> None:
    """Moves the calling process, which has no sockets yet, into namespaces for good."""
    if not paths:
        return
    parent_pid = os.getppid()
    for path in paths:
        with open_namespace(path) as namespace_fd:
            set_namespace(namespace_fd)
    _stay_tied_to(parent_pid)


def _stay_tied_to(parent_pid: int) -> None:
    """Asks anew for the end with the parent: the kernel forgets it when a process gains rights (prctl(2))."""
    die_with(parent_pid)


def _call(name: str, *arguments: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
