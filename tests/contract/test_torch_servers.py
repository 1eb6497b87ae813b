"""Parameter servers: what they keep, what they are sent, and that the result does not depend on how many there are."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.contract.context import spec_facts
from paceline.costs.servers import Cut
from paceline.errors import ModelError
from paceline.plan import complete, refusal
from paceline.record import Rank, Record
from paceline.runs.probe import probe
from paceline.spec import ModelFile, RunSpec
from paceline.strategies import strategy
from paceline.strategies.torch.sandblaster.portions import PortionScheduler
from paceline.systems import local_system

pytestmark = pytest.mark.torch

SERVED = ("torch-ps-sync", "torch-downpour", "torch-sandblaster")
OWN_MODEL = """
import numpy as np
import torch
from torch import nn


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.twice = nn.Linear(20, 32), nn.Linear(32, 32)
        self.never, self.last = nn.Linear(7, 7), nn.Linear(32, 4)
        self.fixed = nn.Parameter(torch.ones(3), requires_grad=False)

    def forward(self, x):
        x = torch.relu(self.twice(torch.relu(self.first(x))))
        return self.last(nn.functional.linear(x, self.twice.weight))


def build():
    return Odd()


def data():
    x = np.random.default_rng(0).normal(size=(256, 20)).astype("float32")
    y = ((x[:, 0] > 0) * 2 + (x[:, 1] > 0)).astype("int64")
    return x[:200], y[:200], x[200:], y[200:]


def optimizer(parameters):
    return torch.optim.{optimizer}(parameters, lr=0.01)
"""


def of_role(record: Record, role: str) -> list[Rank]:
    return [rank for rank in record.ranks if rank.role == role]


def tame(name: str, **knobs: Any) -> dict[str, Any]:
    """The fields that the strategy is tested with, and some knobs more."""
    fields = dict(strategy(name).testing.fields)
    return {**fields, "knobs": {**fields.get("knobs", {}), **knobs}}


def own_model(folder: Path, optimizer: str, chosen: str, workers: int) -> RunSpec:
    file = folder / f"odd_{optimizer}.py"
    file.write_text(OWN_MODEL.replace("{optimizer}", optimizer))
    model = ModelFile.from_text(str(file))
    return complete(RunSpec(model=model, strategy=chosen, workers=workers, global_batch=40, steps=10))


@pytest.mark.parametrize(("elements", "most"), [(1, 64), (7, 1), (1000, 64), (402_442, 131_072)])
@pytest.mark.parametrize("servers", [1, 2, 3, 7])
def test_a_cut_covers_all_parameters_and_gives_every_server_as_many(elements: int, servers: int, most: int) -> None:
    pieces = Cut(servers, most).pieces(elements)
    edges = [0, *(piece.stop for piece in pieces)]
    assert [piece.start for piece in pieces] == edges[:-1]
    assert edges[-1] == elements
    held = [sum(piece.elements for piece in pieces if piece.server == server) for server in range(servers)]
    assert max(held) - min(held) <= 1
    assert all(0 < piece.elements <= most for piece in pieces)


@pytest.mark.parametrize("name", ["torch-ps-sync", "torch-sandblaster"])
@pytest.mark.parametrize("servers", [2, 3])
def test_more_servers_give_the_same_losses_and_weights(name: str, servers: int, trained: Any) -> None:
    one = trained("mnist-small", strategy=name, workers=2, **tame(name))
    more = trained("mnist-small", strategy=name, workers=2, **tame(name, servers=servers))
    assert len(of_role(more.record, "server")) == servers
    # L-BFGS divides by products of small differences, which are added up in another order: rounding grows with steps.
    np.testing.assert_allclose(more.losses, one.losses, rtol=1e-4 if name == "torch-sandblaster" else 1e-5)
    for part, array in one.weights.items():
        np.testing.assert_allclose(more.weights[part], array, atol=2e-4, err_msg=part)


@pytest.mark.parametrize("name", SERVED)
@pytest.mark.parametrize("servers", [1, 3])
def test_every_process_holds_exactly_the_bytes_of_its_footprint(name: str, servers: int, trained: Any) -> None:
    record = trained("mnist-small", strategy=name, workers=2, **tame(name, servers=servers)).record
    footprint = strategy(name).footprint(record.spec, spec_facts(record.spec))
    expected = [group for group in footprint.groups for _ in range(group.ranks)]
    assert [rank.role for rank in record.ranks] == [group.role for group in expected]
    for rank, group in zip(record.ranks, expected, strict=True):
        held = rank.details["held_bytes"]
        assert (held["parameters"], held["optimizer"]) == (group.parameter_bytes, group.optimizer_bytes), rank.role
    shards = [rank.details["held_bytes"]["parameters"] for rank in of_role(record, "server")]
    assert sum(shards) == 402_442 * 4
    assert max(shards) - min(shards) <= 4


@pytest.mark.parametrize("name", SERVED)
def test_cpu_seconds_of_serving_are_recorded_for_every_process_that_serves(name: str, trained: Any) -> None:
    record = trained("mnist-small", strategy=name, workers=2, **tame(name, servers=1)).record
    serving = {rank.role: rank.details.get("serving_cpu_seconds") for rank in record.ranks}
    assert serving.pop("worker") is None
    assert serving
    assert all(seconds > 0 for seconds in serving.values())


@pytest.mark.parametrize("name", ["torch-ps-sync", "torch-downpour"])
def test_smaller_pieces_do_not_change_what_is_held_beyond_their_counters(name: str, trained: Any) -> None:
    record = trained("mnist-small", strategy=name, workers=2, knobs={"piece_kib": 64, "servers": 2}).record
    footprint = strategy(name).footprint(record.spec, spec_facts(record.spec))
    held = [rank.details["held_bytes"]["optimizer"] for rank in of_role(record, "server")]
    assert held == [group.optimizer_bytes for group in footprint.groups[1:]]


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
def test_servers_run_the_optimizer_of_the_run(optimizer: str, trained: Any) -> None:
    settings = {"name": optimizer, "lr": 0.02, "momentum": 0.9 if optimizer == "sgd" else 0.0}
    served = trained("mnist-small", strategy="torch-ps-sync", workers=2, optimizer=settings)
    single = trained.again(strategy("torch-ps-sync").testing.reference(served.record.spec))
    np.testing.assert_allclose(served.losses, single.losses, rtol=1e-4)


def test_a_model_with_shared_unused_and_frozen_parameters_is_served(tmp_path: Path, trained: Any) -> None:
    served = trained.again(own_model(tmp_path, "Adam", "torch-ps-sync", 2))
    single = trained.again(own_model(tmp_path, "Adam", "torch-single", 1))
    np.testing.assert_allclose(served.losses, single.losses, rtol=1e-4)
    for part, array in single.weights.items():
        np.testing.assert_allclose(served.weights[part], array, atol=2e-4, err_msg=part)


def test_an_optimizer_that_needs_whole_parameters_is_refused() -> None:
    import torch

    from paceline.frameworks.torch.servers.server import elementwise_optimizer
    from paceline.workloads.user_model import UserModel

    class Asked:
        user_model = UserModel("mine.py:build", lambda: None, None, None, torch.optim.LBFGS)
        spec = None

    with pytest.raises(ModelError, match=r"mine\.py:build returns LBFGS, which servers cannot run on a part"):
        elementwise_optimizer(Asked())([torch.nn.Parameter(torch.zeros(3))])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "fields", "words"),
    [
        ("torch-ps-sync", {"knobs": {"servers": 0}}, "knob servers of torch-ps-sync is 0; it must be at least 1"),
        ("torch-ps-sync", {"optimizer": {"name": "lbfgs"}}, "lbfgs needs all of them at once; use torch-sandblaster"),
        ("torch-downpour", {"knobs": {"n_push": 0}}, "knob n_push of torch-downpour is 0; it must be at least 1"),
        ("torch-downpour", {"knobs": {"lr": 0.0}}, "knob lr of torch-downpour is 0.0; it must be more than 0"),
        ("torch-sandblaster", {"knobs": {"history": 0}}, "knob history of torch-sandblaster is 0; it must be at least"),
        ("torch-sandblaster", {"knobs": {"lr": -1.0}}, "knob lr of torch-sandblaster is -1.0; it must be more than 0"),
    ],
)
def test_what_servers_cannot_do_is_said_before_the_run(name: str, fields: dict[str, Any], words: str) -> None:
    spec = complete(RunSpec(strategy=name, workers=2, global_batch=64, steps=1, **fields))
    assert words in (refusal(spec, local_system(), probe) or "")


def test_downpour_learns_with_every_worker_and_records_how_stale_gradients_were(trained: Any) -> None:
    chosen, length = strategy("torch-downpour"), {"steps": None, "epochs": 2}
    record = trained("mnist-small", strategy=chosen.name, workers=2, train_samples=None, global_batch=256, **length)
    record = record.record
    assert record.epochs[1].train_loss < chosen.testing.must_reach_loss
    steps, (server,) = len(record.losses), of_role(record, "server")
    assert [rank.details["updates"] for rank in of_role(record, "worker")] == [steps, steps]
    assert server.details["updates"] == 2 * steps
    for rank in record.ranks:
        staleness = rank.details["staleness"]
        assert sum(staleness["histogram"]) == staleness["updates"] == rank.details["updates"]
        assert 0 <= staleness["mean"] <= staleness["max"]
    # Both workers start from the same parameters, so whichever comes second is behind.
    assert server.details["staleness"]["max"] >= 1


def test_downpour_pushes_and_fetches_in_the_rhythm_asked_for(trained: Any) -> None:
    knobs = {"n_push": 2, "n_fetch": 3, "servers": 2, "server_optimizer": "adam", "lr": 0.001}
    run = trained("mnist-small", strategy="torch-downpour", workers=2, knobs=knobs)
    assert [rank.details["updates"] for rank in of_role(run.record, "worker")] == [10, 10]
    assert [rank.details["updates"] for rank in of_role(run.record, "server")] == [20, 20]
    assert run.losses[-4:].mean() < run.losses[:4].mean()


def test_looking_for_a_target_does_not_change_what_a_worker_of_downpour_trains_with(trained: Any) -> None:
    knobs = {"n_fetch": 6, "server_optimizer": "sgd", "lr": 0.05, "local_lr": 0.02, "warm_up_updates": 1}
    fields = {"strategy": "torch-downpour", "workers": 1, "knobs": knobs}
    plain, looking = (trained("mnist-small", **fields, **more) for more in ({}, {"target_accuracy": 1.0}))
    assert len(looking.record.looks) > knobs["n_fetch"]
    np.testing.assert_array_equal(looking.losses, plain.losses)


def test_a_slow_worker_gets_help_and_the_result_stays_the_same(trained: Any) -> None:
    name = "torch-sandblaster"
    even = trained("mnist-small", strategy=name, workers=2, **tame(name))
    slow = trained("mnist-small", strategy=name, workers=2, **tame(name, slow_rank_ms=300.0))
    (desk,) = of_role(slow.record, "coordinator")
    quick, late = desk.details["handed_out"]
    assert quick > late
    assert desk.details["backup_tasks_used"] >= 1
    assert quick + late == 8 * len(slow.losses) + desk.details["backup_tasks"]
    counted = [rank.details["portions_counted"] for rank in of_role(slow.record, "worker")]
    assert sum(counted) == 8 * len(slow.losses)
    np.testing.assert_allclose(slow.losses, even.losses, rtol=1e-6)
    for part, array in even.weights.items():
        np.testing.assert_allclose(slow.weights[part], array, atol=1e-6, err_msg=part)


def test_the_history_in_parts_moves_as_pytorch_does_with_the_whole() -> None:
    import torch

    from paceline.strategies.torch.sandblaster.lbfgs import HistorySlice, Recursion

    torch.manual_seed(0)
    history, sizes = 4, [300, 500, 200]
    mixing, start = torch.randn(1000, 30), torch.randn(1000)

    def bumpy(x: torch.Tensor) -> torch.Tensor:
        # Its curvature changes sign, so that some pairs must be left out of the history.
        return (torch.sin(mixing.T @ x / 8) ** 2).sum() + (x**2).sum() / 100

    whole = start.clone().requires_grad_()
    pytorch = torch.optim.LBFGS([whole], lr=0.3, max_iter=1, history_size=history)
    parts, recursion = [HistorySlice(part.clone(), history) for part in start.split(sizes)], Recursion(history, 0.3)
    left_out = 0
    for iteration in range(30):
        pytorch.zero_grad()
        loss = bumpy(whole)
        loss.backward()
        # Both are given the same gradients, as where they are evaluated would make rounding grow.
        gradient = whole.grad.clone()
        pytorch.step(lambda loss=loss: loss)
        for part, own in zip(parts, gradient.split(sizes), strict=True):
            part.gradient.copy_(own)
        orders = recursion.orders(sum(part.measure() for part in parts), float(gradient.abs().max()))
        assert orders is not None
        left_out += iteration > 0 and orders.slot is None
        for part in parts:
            part.move(orders)
        np.testing.assert_allclose(
            torch.cat([part.values for part in parts]).numpy(), whole.detach().numpy(), atol=1e-4
        )
    assert left_out > 0


def test_a_gradient_of_zero_leaves_no_trace() -> None:
    import torch

    from paceline.strategies.torch.sandblaster.lbfgs import HistorySlice, Recursion

    part, recursion = HistorySlice(torch.ones(5), 2), Recursion(2, 1.0)
    part.gradient.copy_(torch.arange(5.0))
    orders = recursion.orders(part.measure(), 4.0)
    assert orders is not None
    part.move(orders)
    before = [part.values.clone(), part.previous.clone()]
    part.gradient.zero_()
    assert recursion.orders(part.measure(), 0.0) is None
    part.stay()
    assert torch.equal(part.values, before[0])
    assert torch.equal(part.previous, before[1])


def test_the_desk_gives_portions_in_turn_and_counts_the_first_result_only() -> None:
    desk = PortionScheduler(portions=2, workers=2)
    assert (desk.next_portion(0, step=0), desk.next_portion(1, step=0)) == (0, 1)
    assert desk.accept_result(0, 0, 0, loss=0.5)
    assert not desk.accept_result(1, 0, 0, loss=9.0)
    assert desk.accept_result(1, 0, 1, loss=0.25)
    desk.result_arrived()
    desk.result_arrived()
    assert desk.wait_for_all()
    desk.close_step()
    assert desk.step_losses == [0.75]
    assert desk.next_portion(0, step=0) is None
    assert not desk.accept_result(0, 0, 1, loss=9.0)


def test_the_desk_hands_a_slow_portion_out_again_to_whoever_is_idle() -> None:
    desk = PortionScheduler(portions=2, workers=2)
    assert desk.next_portion(0, step=0) == 0
    assert desk.next_portion(1, step=0) == 1
    assert desk.accept_result(0, 0, 0, loss=1.0)
    # Worker 1 does not come back; worker 0 waits until its portion is late, then gets it.
    assert desk.next_portion(0, step=0) == 1
    assert desk.accept_result(0, 0, 1, loss=1.0)
    assert not desk.accept_result(1, 0, 1, loss=1.0)
    assert (desk.backups, desk.backups_used, desk.handed_out) == (1, 1, [2, 1])


def test_the_desk_lets_all_go_when_a_worker_is_lost() -> None:
    desk, answers = PortionScheduler(portions=1, workers=2), []
    assert desk.next_portion(0, step=0) == 0
    waiting = threading.Thread(target=lambda: answers.append(desk.next_portion(1, step=0)))
    waiting.start()
    desk.remove_worker(ConnectionError("worker 0 is gone"))
    waiting.join(timeout=10)
    assert answers == [None]
    with pytest.raises(ConnectionError, match="worker 0 is gone"):
        desk.wait_for_all()


def test_the_desk_closes_when_every_worker_is_done() -> None:
    desk = PortionScheduler(portions=3, workers=2)
    desk.remove_worker()
    desk.remove_worker()
    assert not desk.wait_for_all()


def test_a_server_serves_workers_on_its_own_cores_last(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from paceline.contract.context import Context, Process, Rendezvous
    from paceline.frameworks.torch.servers import server as torch_server

    # Four workers and a server on two cores of this host; worker 2 has the same core on another host.
    places = [("here", {0}), ("here", {1}), ("there", {0}), ("here", {0, 1}), ("here", {0})]

    def gather(into: list[Any], _own: Any) -> None:
        into[:] = places

    monkeypatch.setattr(torch_server.dist, "all_gather_object", gather)
    spec = RunSpec(strategy="torch-ps-sync", workers=4, global_batch=64, steps=1)
    context = Context(spec, Process(4, 5, "server", 0, (0,)), Rendezvous("", 0))
    assert torch_server.serving_order(context) == [1, 2, 0, 3]
