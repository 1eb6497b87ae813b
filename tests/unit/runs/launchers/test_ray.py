"""What is said where there is no Ray, and how its nodes become machines."""

import sys

import pytest

from paceline.errors import UserError
from paceline.fleet import parse_fleet
from paceline.runs.launchers.ray import _check_reachable, _names, _nodes, open_ray


class Cluster:
    def __init__(self, *nodes):
        self._nodes = nodes

    def nodes(self):
        return list(self._nodes)


def node(address, name="host", alive=True, **resources):
    return {"Alive": alive, "NodeManagerAddress": address, "NodeManagerHostname": name, "Resources": resources}


def test_without_ray_it_is_said_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(
        UserError, match=r"--on ray needs Ray, which is not installed here: pip install 'paceline\[ray\]'"
    ):
        open_ray(parse_fleet("ray")).__enter__()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1"])
def test_an_address_where_nobody_listens_is_found_out_at_once(address):
    with pytest.raises(OSError, match="refused"):
        _check_reachable(address)


@pytest.mark.parametrize("address", ["auto", "local"])
def test_an_address_without_a_port_is_left_to_ray(address):
    _check_reachable(address)


def test_machines_are_the_living_nodes_with_cores_in_the_order_of_their_addresses():
    cluster = Cluster(
        node("10.0.0.10", CPU=2.0), node("10.0.0.9", CPU=2.0), node("10.0.0.1", alive=False, CPU=2.0), node("10.0.0.2")
    )
    assert [each["NodeManagerAddress"] for each in _nodes(cluster, None)] == ["10.0.0.9", "10.0.0.10"]
    assert len(_nodes(cluster, 1)) == 1
    with pytest.raises(UserError, match="3 nodes of Ray were asked for and its cluster has 2; ask for fewer"):
        _nodes(cluster, 3)
    with pytest.raises(UserError, match="the Ray cluster has no node with a CPU to use"):
        _nodes(Cluster(node("10.0.0.2")), None)


def test_machines_have_names_that_tell_them_apart():
    assert _names([node("10.0.0.1", "a"), node("10.0.0.2", "b")]) == ["a", "b"]
    assert _names([node("10.0.0.1"), node("10.0.0.2")]) == ["10.0.0.1", "10.0.0.2"]
    assert _names([node("127.0.0.1"), node("127.0.0.1")]) == ["127.0.0.1-0", "127.0.0.1-1"]
