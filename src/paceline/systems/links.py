"""Whether this machine can put processes behind links of a stated rate and delay, and in which way."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache

from paceline.link import NetworkLink

PROGRAMS = ("ip", "tc")
TUN_DEVICE = "/dev/net/tun"
# Loopback exists in every namespace and is nobody's but the trial's.
_BRIDGE = "ip link add name trial type bridge"
_RATE = "tc qdisc add dev lo root tbf rate 1gbit burst 128000 limit 256000"
_DELAY = "tc qdisc add dev lo root netem delay 1ms"


@dataclass(frozen=True)
class LinkMeans:
    """How namespaces can be made here: by root, or as root of a user namespace of one's own; and who delays."""

    as_own_root: bool
    # Whether the kernel's traffic control can delay frames; a relay on TAP devices can where it may open them.
    kernel_delays: bool
    relay_delays: bool


@cache
def link_means() -> LinkMeans | str:
    """How links are made on this machine, tried out in a namespace that ends at once; or why they cannot, in words."""
    if sys.platform != "linux":
        return "links are made of Linux's network namespaces, and this is no Linux"
    missing = [program for program in (*PROGRAMS, "unshare") if shutil.which(program) is None]
    if missing:
        package = "util-linux" if missing[0] == "unshare" else "iproute2"
        return f"links need the program {missing[0]}, which is not on the path; install {package}"
    for as_own_root in (False, True):
        if _works(as_own_root, f"{_BRIDGE} && {_RATE}"):
            relay = os.access(TUN_DEVICE, os.R_OK | os.W_OK)
            return LinkMeans(as_own_root, _works(as_own_root, _DELAY), relay)
    return (
        "links need the right to make network namespaces, bridges and rate limits; "
        "run as root, or allow unprivileged user namespaces"
    )


def why_no_link(link: NetworkLink) -> str | None:
    """What that link lacks here, in words, or None."""
    means = link_means()
    if isinstance(means, str):
        return means
    if link.delay_seconds and not (means.kernel_delays or means.relay_delays):
        return (
            f"link {link.text} has a delay, which needs the kernel's netem (module sch_netem) or the right to open "
            f"{TUN_DEVICE}; run as root, or leave the delay out"
        )
    return None


def _works(as_own_root: bool, commands: str) -> bool:
    way = ["-r", "-n"] if as_own_root else ["-n"]
    done = subprocess.run(["unshare", *way, "sh", "-c", commands], capture_output=True, check=False)
    return done.returncode == 0
