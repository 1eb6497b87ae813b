"""Seconds of transfers, by formulas that can be checked by hand."""

import pytest

from paceline.predict.transfers import Costs, Wire, broadcast_seconds, ring_seconds, tree_seconds
from paceline.systems.files import load_hardware
from paceline.systems.hardware import Calibration, Collective, Curve, Hardware, Link, Quantity

FAST = Wire(latency=0.0, bandwidth=100.0)


def link(bytes_per_second: float, latency: float) -> Link:
    source = "made up for a test"
    return Link(
        bytes_per_second=Quantity(value=bytes_per_second, source=source),
        latency_seconds=Quantity(value=latency, source=source),
    )


@pytest.fixture
def hardware() -> Hardware:
    """Nodes of four; ten times as fast within as between."""
    return load_hardware("h100-nvlink").model_copy(
        update={"node_devices": 4, "inner": link(1000.0, 0.0), "outer": link(100.0, 0.0)}
    )


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_a_ring_all_reduce_sends_two_times_n_minus_one_over_n_of_the_payload(ranks: int) -> None:
    assert ring_seconds("all-reduce", 1000.0, ranks, FAST) == pytest.approx(2 * (ranks - 1) / ranks * 1000 / 100)


def test_a_ring_pays_the_latency_for_each_of_its_steps() -> None:
    assert ring_seconds("all-reduce", 0.0, 5, Wire(latency=1.0, bandwidth=1.0)) == 8
    assert ring_seconds("all-gather", 0.0, 5, Wire(latency=1.0, bandwidth=1.0)) == 4


def test_a_tree_pays_the_latency_up_and_down_its_levels() -> None:
    assert tree_seconds(0.0, 8, Wire(latency=1.0, bandwidth=1.0)) == 6


def test_a_broadcast_reaches_twice_as_many_in_each_round() -> None:
    assert broadcast_seconds(100.0, 8, FAST) == 3
    assert broadcast_seconds(100.0, 5, FAST) == 3


def test_within_a_node_the_inner_link_carries_all(hardware: Hardware) -> None:
    costs = Costs(hardware, "nccl", "ring")
    assert costs.seconds("all-reduce", 1000.0, 4) == pytest.approx(2 * 3 / 4 * 1000 / 1000)


def test_between_nodes_each_device_carries_its_share_of_the_payload(hardware: Hardware) -> None:
    costs = Costs(hardware, "nccl", "ring")
    within = 2 * 3 / 4 * 1000 / 1000
    between = 2 * 1 / 2 * (1000 / 4) / 100
    assert costs.seconds("all-reduce", 1000.0, 8) == pytest.approx(within + between)


def test_ranks_that_are_a_node_apart_use_the_outer_link(hardware: Hardware) -> None:
    costs = Costs(hardware, "nccl", "ring")
    assert costs.seconds("all-reduce", 1000.0, 2, apart=4) == pytest.approx(1000 / 100)
    assert costs.seconds("send", 1000.0, 2, apart=1) == pytest.approx(1000 / 1000)


def test_the_faster_algorithm_is_taken_unless_one_is_named(hardware: Hardware) -> None:
    slow_start = hardware.model_copy(update={"node_devices": 64, "inner": link(1e9, 1.0)})
    by = {name: Costs(slow_start, "nccl", name).seconds("all-reduce", 1000.0, 64) for name in ("auto", "ring", "tree")}
    assert by["tree"] == pytest.approx(12, rel=1e-3)
    assert by["ring"] == pytest.approx(126, rel=1e-3)
    assert by["auto"] == by["tree"]


def test_nothing_is_paid_for_nothing(hardware: Hardware) -> None:
    costs = Costs(hardware, "nccl")
    assert costs.seconds("all-reduce", 0.0, 8) == costs.seconds("all-reduce", 1000.0, 1) == 0


@pytest.fixture
def measured(hardware: Hardware) -> Hardware:
    curve = Curve.through([1e3, 1e6], [1e-3 + 1e-6, 1e-3 + 1e-3])
    found = Calibration(
        at="2020-01-01", machine="a machine", frameworks={},
        collectives=(Collective(transport="gloo", kind="all-reduce", ranks=2, curve=curve),),
    )  # fmt: skip
    return hardware.model_copy(update={"calibration": found, "kind": "cpu"})


def test_what_was_measured_is_what_is_predicted(measured: Hardware) -> None:
    costs = Costs(measured, "gloo")
    assert costs.seconds("all-reduce", 1e6, 2) == pytest.approx(2e-3)
    assert costs.residual("all-reduce", 2) == 0
    assert costs.residual("broadcast", 2) is None


def test_a_longer_ring_than_the_measured_one_has_more_steps_of_smaller_parts(measured: Hardware) -> None:
    costs = Costs(measured, "gloo")
    assert costs.seconds("all-reduce", 1e6, 4) == pytest.approx(3 * 1e-3 + 3 * 2 / 4 * 1e-3)


def test_within_one_process_memory_is_the_link(hardware: Hardware) -> None:
    bandwidth = hardware.device.memory_bytes_per_second.value
    assert Costs(hardware, "memory").seconds("all-reduce", bandwidth, 3) == pytest.approx(4)
