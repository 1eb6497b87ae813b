"""The commands that make and shape a network."""

import pytest

from paceline.link import NetworkLink
from paceline.runs.links import shaping


def test_a_bucket_holds_a_millisecond_and_no_less_than_two_frames() -> None:
    assert shaping.burst_bytes(NetworkLink.from_text("1gbit")) == 125_000
    assert shaping.burst_bytes(NetworkLink.from_text("1mbit")) == 2 * 1_514


@pytest.mark.parametrize(("text", "piece"), [("1mbit", 1_514), ("100mbit", 6_250), ("10gbit", 65_536)])
def test_pieces_fit_into_half_a_bucket(text: str, piece: int) -> None:
    assert shaping.piece_bytes(NetworkLink.from_text(text)) == piece


@pytest.mark.parametrize(("text", "piece"), [("1mbit", 4 * 1_514), ("100mbit", 25_000), ("10gbit", 65_536)])
def test_a_relay_carries_larger_pieces(text: str, piece: int) -> None:
    assert shaping.piece_bytes(NetworkLink.from_text(text), relayed=True) == piece


def test_rate_limits_are_at_both_ends_and_the_delay_is_before_the_receiver() -> None:
    link = NetworkLink.from_text("100mbit:5ms")
    assert shaping.sending_rules(link) == ["qdisc add dev link0 root tbf rate 100000000bit burst 12500 limit 625000"]
    assert shaping.receiving_rules(3, link) == [
        "qdisc add dev port3 root handle 1: netem delay 5000us limit 1908",
        "qdisc add dev port3 parent 1:1 handle 10: tbf rate 100000000bit burst 12500 limit 625000",
    ]
    assert shaping.receiving_rules(0, NetworkLink.from_text("100mbit")) == [
        "qdisc add dev port0 root tbf rate 100000000bit burst 12500 limit 625000"
    ]


def test_every_process_has_an_address_and_a_hardware_address_of_its_own() -> None:
    ranks = range(600)
    assert len({shaping.address(rank) for rank in ranks}) == 600
    assert shaping.address(0) == "10.77.0.1"
    assert shaping.address(250) == "10.77.1.1"
    assert [int.from_bytes(shaping.mac_address(rank)[4:], "big") for rank in ranks] == list(ranks)
