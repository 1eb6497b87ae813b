"""Frames between a launcher and an agent: whole, in order, and with a key not to be made up."""

import os
import socket
import threading

import pytest

from paceline.runs.agent.channel import AGENT, LAUNCHER, Channel, ChannelClosedError, SilenceError
from paceline.runs.agent.messages import FROM_AGENT, Beat, FilePart, Listening

KEY = b"k" * 32


@pytest.fixture
def connected():
    """Both ends of a channel, with a key at each end."""
    opened = []

    def make(launcher_key=None, agent_key=None):
        near, far = socket.socketpair()
        ends = (
            Channel(near.fileno(), near.fileno(), LAUNCHER, launcher_key),
            Channel(far.fileno(), far.fileno(), AGENT, agent_key),
        )
        opened.extend((near, far))
        return ends

    yield make
    for end in opened:
        end.close()


def hang_up(channel):
    with socket.socket(fileno=os.dup(channel.read_fd)) as end:
        end.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("key", [None, KEY])
def test_messages_arrive_whole_and_in_order(connected, key):
    launcher, agent = connected(key, key)
    long = FilePart(name="weights", data=os.urandom(3 << 20), first=True, last=True)
    sender = threading.Thread(target=lambda: [agent.send(message) for message in (Beat(), long, Beat())])
    sender.start()
    received = [FROM_AGENT.validate_json(launcher.receive(10.0)) for _ in range(3)]
    sender.join()
    assert received == [Beat(), long, Beat()]


def test_nothing_that_a_shell_prints_before_the_mark_is_taken_for_a_frame(connected):
    launcher, agent = connected()
    os.write(agent.write_fd, b"Welcome to this machine!\nMARK")
    agent.send(Beat())
    assert launcher.skip_past(b"MARK", 5.0) == b"Welcome to this machine!\n"
    assert FROM_AGENT.validate_json(launcher.receive(5.0)) == Beat()


def test_silence_is_told_from_an_end(connected):
    launcher, agent = connected()
    with pytest.raises(SilenceError):
        launcher.receive(0.01)
    os.write(agent.write_fd, b"\0\0")
    hang_up(agent)
    with pytest.raises(ChannelClosedError):
        launcher.receive(5.0)


@pytest.mark.parametrize("key", [b"w" * 32, None])
def test_a_frame_without_the_right_signature_ends_the_channel(connected, key):
    launcher, agent = connected(KEY, key)
    for _ in range(3):
        agent.send(Listening(port=1, word="0123456789abcdef"))
    with pytest.raises(ChannelClosedError, match="not signed"):
        launcher.receive(0.5)


def test_a_frame_that_is_sent_twice_or_turned_around_ends_the_channel(connected):
    launcher, agent = connected(KEY, KEY)
    near, far = socket.socketpair()
    with near, far:
        tapped = Channel(far.fileno(), far.fileno(), AGENT, KEY)
        tapped.send(Beat())
        frame = near.recv(1 << 16)
        os.write(agent.write_fd, frame + frame)
        launcher.receive(1.0)
        with pytest.raises(ChannelClosedError, match="not signed"):
            launcher.receive(1.0)
        os.write(launcher.write_fd, frame)
        with pytest.raises(ChannelClosedError, match="not signed"):
            agent.receive(1.0)


def test_a_length_beyond_any_message_is_refused_before_it_is_waited_for(connected):
    launcher, agent = connected()
    launcher.most_frame_bytes = 100
    os.write(agent.write_fd, (101).to_bytes(4, "big"))
    with pytest.raises(ChannelClosedError, match="101 bytes is longer than any message"):
        launcher.receive(1.0)


def test_sending_to_nobody_says_so(connected):
    launcher, agent = connected()
    hang_up(agent)
    with pytest.raises(ChannelClosedError):
        for _ in range(100):
            launcher.send(Beat())
