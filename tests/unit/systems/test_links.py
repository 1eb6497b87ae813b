"""Whether a machine can make links: what it says without the programs, the rights or the device for delays."""

import pytest

from paceline.link import NetworkLink
from paceline.systems import links
from paceline.systems.links import LinkMeans, link_means, why_no_link

PLAIN, DELAYED = NetworkLink.from_text("1gbit"), NetworkLink.from_text("1gbit:5ms")


@pytest.fixture(autouse=True)
def asked_anew():
    link_means.cache_clear()
    yield
    link_means.cache_clear()


def test_a_missing_program_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links.shutil, "which", lambda program: None if program == "tc" else f"/sbin/{program}")
    assert why_no_link(PLAIN) == "links need the program tc, which is not on the path; install iproute2"


def test_missing_rights_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links.shutil, "which", lambda program: f"/sbin/{program}")
    monkeypatch.setattr(links, "_works", lambda _as_own_root, _commands: False)
    assert why_no_link(PLAIN) == (
        "links need the right to make network namespaces, bridges and rate limits; "
        "run as root, or allow unprivileged user namespaces"
    )


def test_a_user_namespace_does_where_root_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links.shutil, "which", lambda program: f"/sbin/{program}")
    monkeypatch.setattr(links, "_works", lambda as_own_root, commands: as_own_root and "netem" not in commands)
    monkeypatch.setattr(links.os, "access", lambda _path, _mode: False)
    assert link_means() == LinkMeans(as_own_root=True, kernel_delays=False, relay_delays=False)
    assert why_no_link(PLAIN) is None
    assert why_no_link(DELAYED) == (
        "link 1gbit:5ms has a delay, which needs the kernel's netem (module sch_netem) or the right to open "
        "/dev/net/tun; run as root, or leave the delay out"
    )


def test_netem_or_a_relay_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "link_means", lambda: LinkMeans(False, kernel_delays=True, relay_delays=False))
    assert why_no_link(DELAYED) is None
    monkeypatch.setattr(links, "link_means", lambda: LinkMeans(False, kernel_delays=False, relay_delays=True))
    assert why_no_link(DELAYED) is None
