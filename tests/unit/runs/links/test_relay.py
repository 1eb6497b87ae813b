"""The relay's arithmetic with a clock of the test's own, and its frames through socket pairs in place of devices."""

import os
import socket
from collections.abc import Iterator

import pytest

from paceline.link import NetworkLink
from paceline.runs.links.relay import HEADER, Relay, Switch, wire_bytes
from paceline.runs.links.shaping import buffer_bytes, mac_address

LINK = NetworkLink.from_text("8mbit:10ms")  # a byte takes a microsecond
TCP_SEGMENTS = 1


def frame(size: int, receiver: bytes, segment_bytes: int = 0, header_bytes: int = 0) -> bytes:
    head = HEADER.pack(0, TCP_SEGMENTS if segment_bytes else 0, header_bytes, segment_bytes, 0, 0)
    return head + receiver + bytes(size - len(receiver))


def test_a_frame_takes_its_bytes_at_the_links_rate_and_then_the_delay() -> None:
    switch = Switch(LINK, 2)
    departed = switch.depart(0, 1_000, now=5.0)
    assert departed == pytest.approx(5.001)
    assert switch.arrive(1, 1_000, departed) == pytest.approx(5.011)


def test_frames_of_one_sender_follow_each_other() -> None:
    switch = Switch(LINK, 2)
    times = [switch.arrive(1, 1_000, switch.depart(0, 1_000, now=5.0)) for _ in range(3)]
    assert times == pytest.approx([5.011, 5.012, 5.013])
    assert switch.ready_at(0) == pytest.approx(5.003 - 0.0005)


def test_two_senders_to_one_receiver_share_its_link() -> None:
    switch = Switch(LINK, 3)
    times = [switch.arrive(2, 1_000, switch.depart(sender, 1_000, now=5.0)) for sender in (0, 1)]
    assert times == pytest.approx([5.011, 5.012])


def test_what_a_full_buffer_cannot_hold_is_dropped() -> None:
    switch = Switch(LINK, 3)
    arrivals = []
    for number in range(300):
        for sender in (0, 1):
            arrivals.append(switch.arrive(2, 1_000, switch.depart(sender, 1_000, now=5.0 + number / 1000)))
    held = buffer_bytes(LINK) / 1_000
    assert 300 - held - 1 <= arrivals.count(None) <= 300


def test_a_piece_of_several_segments_counts_the_headers_of_each() -> None:
    assert wire_bytes(frame(1_000, mac_address(1))) == 1_000
    assert wire_bytes(frame(66 + 3 * 1_448, mac_address(1), segment_bytes=1_448, header_bytes=66)) == 3 * (66 + 1_448)


@pytest.fixture
def ends() -> Iterator[list[tuple[socket.socket, socket.socket]]]:
    """For each of three ports, the relay's end and the process's."""
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(3)]
    for relay_end, process_end in pairs:
        relay_end.setblocking(False)
        process_end.setblocking(False)
    yield pairs
    for pair in pairs:
        for end in pair:
            end.close()


def received(end: socket.socket) -> bytes | None:
    try:
        return end.recv(1 << 17)
    except BlockingIOError:
        return None


def test_frames_reach_the_process_they_are_for_when_their_time_has_come(ends) -> None:
    relay = Relay([relay_end.fileno() for relay_end, _ in ends], Switch(LINK, 3))
    sent = frame(1_000, mac_address(2))
    ends[0][1].send(sent)
    relay.take(0, now=1.0)
    relay.deliver(1.0109)
    assert received(ends[2][1]) is None
    relay.deliver(1.0111)
    assert received(ends[2][1]) == sent
    assert received(ends[1][1]) is None


def test_a_frame_for_everyone_reaches_all_others(ends) -> None:
    relay = Relay([relay_end.fileno() for relay_end, _ in ends], Switch(LINK, 3))
    sent = frame(100, b"\xff" * 6)
    ends[1][1].send(sent)
    relay.take(1, now=1.0)
    relay.deliver(2.0)
    assert [received(end) for _, end in ends] == [sent, None, sent]


def test_a_frame_for_nobody_is_lost(ends) -> None:
    relay = Relay([relay_end.fileno() for relay_end, _ in ends], Switch(LINK, 3))
    ends[0][1].send(frame(100, mac_address(7)))
    relay.take(0, now=1.0)
    assert not any(relay.under_way)


def test_the_relay_runs_until_its_channel_is_closed(ends) -> None:
    relay = Relay([relay_end.fileno() for relay_end, _ in ends], Switch(LINK, 3))
    reading, writing = os.pipe()
    os.close(writing)
    relay.run(reading)
    os.close(reading)
