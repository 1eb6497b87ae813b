"""Agents that dial back: each is let in once, by its own secret, and nobody else is."""

import os
import socket
import subprocess
import sys

import pytest

from paceline.fleet import FleetMachine
from paceline.runs.agent import dial_back
from paceline.runs.agent.channel import LAUNCHER, Channel, ChannelClosedError, SilenceError
from paceline.runs.agent.dial_back import NONCE_BYTES, SECRET, Reception, dial
from paceline.runs.agent.messages import TO_AGENT, Beat
from paceline.runs.launchers.agents import Agent


@pytest.fixture
def reception():
    opened = Reception("127.0.0.1", 2)
    yield opened
    opened.close()


def dialled(reception, number, monkeypatch):
    monkeypatch.setenv(SECRET, reception.environment(number)[SECRET])
    return dial(reception.where)


def test_an_agent_with_its_secret_is_let_in_and_its_processes_do_not_inherit_it(reception, monkeypatch):
    agent = dialled(reception, 1, monkeypatch)
    assert SECRET not in os.environ
    launcher = reception.await_agent(1, 10.0)
    launcher.send(Beat())
    assert TO_AGENT.validate_json(agent.receive(10.0)) == Beat()
    agent.close()
    launcher.close()


def test_each_secret_is_good_for_one_connection_of_its_own_agent(reception, monkeypatch):
    first = dialled(reception, 0, monkeypatch)
    launcher = reception.await_agent(0, 10.0)
    second = dialled(reception, 0, monkeypatch)
    with pytest.raises(ChannelClosedError):
        second.receive(10.0)
    wrong = reception.environment(0)[SECRET].replace("0:", "1:", 1)
    monkeypatch.setenv(SECRET, wrong)
    stranger = dial(reception.where)
    with pytest.raises(ChannelClosedError):
        stranger.receive(10.0)
    with pytest.raises(SilenceError):
        reception.await_agent(1, 0.05)
    for channel in (first, second, stranger, launcher):
        channel.close()


def test_a_lost_agent_is_expected_again_with_another_secret(reception, monkeypatch):
    first, former = dialled(reception, 0, monkeypatch), reception.environment(0)
    gone = reception.await_agent(0, 10.0)
    reception.expect_again(0)
    assert reception.environment(0) != former
    monkeypatch.setenv(SECRET, former[SECRET])
    stranger = dial(reception.where)
    with pytest.raises(ChannelClosedError):
        stranger.receive(10.0)
    second = dialled(reception, 0, monkeypatch)
    again = reception.await_agent(0, 10.0)
    assert again is not gone
    for channel in (first, gone, stranger, second, again):
        channel.close()


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.0\r\n\r\n" * 10, b"\0" * 4 + bytes(NONCE_BYTES) + b"\xff" * 100])
def test_a_stranger_is_told_nothing_but_a_random_number(reception, said, monkeypatch):
    monkeypatch.setattr(dial_back, "STRANGER_SECONDS", 0.2)
    with socket.create_connection(reception.where.rsplit(":", 1), 10) as connection:
        assert len(connection.recv(100, socket.MSG_WAITALL) if not said else connection.recv(100)) <= NONCE_BYTES
        with pytest.raises((OSError, AssertionError)):
            connection.sendall(said)
            connection.settimeout(10)
            assert connection.recv(100) != b""
    with pytest.raises(SilenceError):
        reception.await_agent(0, 0.01)


def test_a_real_agent_dials_back_and_says_what_its_machine_has(reception, child_environment):
    words = [sys.executable, "-P", "-m", "paceline.runs.agent", "--dial", reception.where]
    process = subprocess.Popen(words, env={**child_environment, **reception.environment(0)}, stderr=subprocess.PIPE)
    channel = reception.await_agent(0, 60.0)
    assert isinstance(channel, Channel) and channel.side == LAUNCHER and channel.key is not None
    agent = Agent(0, FleetMachine(name="here"), channel, lease_seconds=30.0)
    agent.begin()
    try:
        facts = agent.meet()
        assert (facts.address, facts.pid) == ("127.0.0.1", process.pid)
        clock = agent.clock()
        # One host has one clock.
        assert abs(clock.offset) <= clock.error
    finally:
        agent.close()
        _, words_of_it = process.communicate(timeout=60)
        channel.close()
    assert process.returncode == 0, words_of_it
