"""TensorFlow's parameter servers: who does what, where variables live, and that no batch is lost or used twice."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.contract.context import Context, Process, Rendezvous, spec_facts
from paceline.frameworks.staleness import Staleness
from paceline.plan import complete, refusal
from paceline.record import Rank, Record
from paceline.runs.folder import RunFolder
from paceline.runs.probe import probe
from paceline.runs.processes import held_port
from paceline.spec import ModelFile, RunSpec
from paceline.strategies import strategy
from paceline.strategies.tensorflow.ps.job import (
    accept_members,
    connect_to_chief,
    receive_details,
    send_details,
)
from paceline.strategies.tensorflow.ps.placement import ServerAssignment, server_bytes
from paceline.systems import local_system

pytestmark = pytest.mark.tensorflow

WHOLE_BYTES = 402_442 * 4
OWN_MODEL = """
import keras
import numpy as np


def build():
    return keras.Sequential([
        keras.Input((20,)), keras.layers.Dense(32, activation="relu"), keras.layers.BatchNormalization(),
        keras.layers.Dense(4, activation="softmax"),
    ])


def data():
    x = np.random.default_rng(0).normal(size=(256, 20)).astype("float32")
    y = ((x[:, 0] > 0) * 2 + (x[:, 1] > 0)).astype("int64")
    return x[:200], y[:200], x[200:], y[200:]
"""
OWN_OPTIMIZER = """

def optimizer(variables):
    return keras.optimizers.RMSprop(0.01)
"""


def of_role(record: Record, role: str) -> list[Rank]:
    return [rank for rank in record.ranks if rank.role == role]


def ps(trained: Any, workers: int, **knobs: Any) -> Any:
    return trained("mnist-small", strategy="tf-ps", workers=workers, knobs=knobs)


def test_one_worker_follows_tf_single_exactly(trained: Any) -> None:
    alone, single = ps(trained, 1), trained("mnist-small", strategy="tf-single", workers=1)
    np.testing.assert_allclose(alone.losses, single.losses, rtol=1e-5)
    for name, array in single.weights.items():
        np.testing.assert_allclose(alone.weights[name], array, atol=1e-5, err_msg=name)
    (worker,) = of_role(alone.record, "worker")
    assert worker.details["staleness"] == {"updates": 20, "mean": 0.0, "max": 0, "histogram": [20]}


def test_every_share_of_every_batch_is_trained_on_once(trained: Any) -> None:
    record = ps(trained, 2).record
    assert len(record.losses) == 20
    (chief,), workers, (server,) = (of_role(record, role) for role in ("chief", "worker", "server"))
    # What each worker counted itself, on its own device, and what the chief handed out.
    assert [worker.details["updates"] for worker in workers] == chief.details["handed_out"]
    assert sum(chief.details["handed_out"]) == server.details["updates"] == 2 * 20
    assert min(chief.details["handed_out"]) > 0


def test_staleness_is_recorded_for_every_update(trained: Any) -> None:
    record = ps(trained, 2).record
    for rank in of_role(record, "worker") + of_role(record, "server"):
        staleness = rank.details["staleness"]
        assert sum(staleness["histogram"]) == staleness["updates"] == rank.details["updates"]
        assert 0 <= staleness["mean"] <= staleness["max"]
    # Two workers that start from the same parameters cannot both be first.
    assert of_role(record, "server")[0].details["staleness"]["max"] >= 1


def test_cpu_seconds_of_serving_are_recorded_for_workers_and_servers(trained: Any) -> None:
    record = ps(trained, 2).record
    (chief,) = of_role(record, "chief")
    assert "serving_cpu_seconds" not in chief.details
    for rank in of_role(record, "worker") + of_role(record, "server"):
        assert 0 < rank.details["serving_cpu_seconds"] < rank.cpu_seconds


@pytest.mark.parametrize("servers", [1, 3])
def test_every_process_holds_exactly_the_bytes_of_its_footprint(servers: int, trained: Any) -> None:
    record = ps(trained, 2, servers=servers).record
    footprint = strategy("tf-ps").footprint(record.spec, spec_facts(record.spec))
    expected = [group for group in footprint.groups for _ in range(group.ranks)]
    assert [rank.role for rank in record.ranks] == [group.role for group in expected]
    for rank, group in zip(record.ranks, expected, strict=True):
        held = rank.details["held_bytes"]
        assert (held["parameters"], held["optimizer"]) == (group.parameter_bytes, group.optimizer_bytes), rank.role
    shares = of_role(record, "server")
    assert sum(rank.details["held_bytes"]["parameters"] for rank in shares) == WHOLE_BYTES
    assert sorted(name for rank in shares for name in rank.details["variables"]) == [
        f"model/{layer}/{part}" for layer in ("0_conv", "3_dense", "4_dense") for part in ("bias", "kernel")
    ]


def test_blocks_are_dealt_over_servers_as_counted(trained: Any) -> None:
    record = trained("transformer", strategy="tf-ps", workers=2, steps=4, knobs={"servers": 2}).record
    held = [rank.details["held_bytes"]["parameters"] for rank in of_role(record, "server")]
    assert held == list(server_bytes(spec_facts(record.spec), 2))
    assert max(held) - min(held) < 0.05 * sum(held)


def test_several_steps_in_one_call_use_each_share_once_too(trained: Any) -> None:
    record = ps(trained, 2, steps_per_execution=3).record
    assert len(record.losses) == 20
    assert of_role(record, "server")[0].details["updates"] == 40


@pytest.mark.parametrize("optimizer", [
    pytest.param("", id="the run's optimizer"),
    pytest.param(OWN_OPTIMIZER, id="its own optimizer", marks=pytest.mark.soak),
])  # fmt: skip
def test_a_model_of_the_users_is_served(optimizer: str, tmp_path: Path, trained: Any) -> None:
    file = tmp_path / "mine.py"
    file.write_text(OWN_MODEL + optimizer)
    fields = {"model": ModelFile.from_text(str(file)), "strategy": "tf-ps", "workers": 2, "global_batch": 40}
    run = trained.again(complete(RunSpec.model_validate({**fields, "epochs": 6, "optimizer": {"lr": 0.01}})))
    assert run.losses[-5:].mean() < 0.8 * run.losses[:5].mean()
    assert [rank.details["updates"] > 0 for rank in of_role(run.record, "worker")] == [True, True]
    assert of_role(run.record, "server")[0].details["updates"] == 2 * 30


@pytest.mark.parametrize("optimizer", [
    pytest.param("", id="the run's optimizer", marks=pytest.mark.soak),
    pytest.param(OWN_OPTIMIZER, id="its own optimizer"),
])  # fmt: skip
def test_a_share_that_is_taken_apart_trains_as_a_whole_one(optimizer: str, tmp_path: Path, trained: Any) -> None:
    file = tmp_path / "mine.py"
    file.write_text(OWN_MODEL + optimizer)
    fields = {"model": ModelFile.from_text(str(file)), "strategy": "tf-ps", "workers": 1, "global_batch": 40}
    knobs = {"servers": 2, "steps_per_execution": 2}
    spec = complete(RunSpec.model_validate({**fields, "epochs": 4, "knobs": knobs, "optimizer": {"lr": 0.01}}))
    noted = trained.again(spec.model_copy(update={"instrumented": True}))
    timed = trained.again(spec)
    np.testing.assert_allclose(noted.losses[:20], timed.losses[:20], rtol=1e-5)
    (part,) = noted.record.breakdown
    # All variables come, and a gradient of each that is trained goes: not of the two averages over batches.
    arrays = 20 * 32 + 32 + 2 * 32 + 32 * 4 + 4
    assert (part.rank, part.sent_bytes) == (1, 4 * (2 * arrays + 2 * 32))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"knobs": {"servers": 0}}, "knob servers of tf-ps is 0; it must be at least 1"),
        ({"knobs": {"ahead": 0}}, "knob ahead of tf-ps is 0; it must be at least 1"),
        ({"optimizer": {"name": "lbfgs"}}, "optimizer lbfgs"),
        ({"memory_format": "contiguous"}, "channels_last"),
    ],
)
def test_what_it_cannot_do_is_said_before_the_run(fields: dict[str, Any], words: str) -> None:
    spec = complete(RunSpec(strategy="tf-ps", workers=2, global_batch=64, steps=1, **fields))
    assert words in (refusal(spec, local_system(), probe) or "")


def test_variables_go_to_whoever_has_least_and_the_same_however_they_come() -> None:
    shapes = [(10,), (100, 10), (30, 10), (40, 10), (20, 10)]
    for order in (shapes, shapes[::-1]):
        assignment = ServerAssignment(2, shapes)
        planned, held = list(assignment.bytes), [0, 0]
        for shape in order:
            size = 4 * int(np.prod(shape))
            held[assignment.place(shape, size)] += size
        assert held == planned == [4000, 3640] or held == planned == [4040, 3600]
    assert ServerAssignment(3).place((), 8) == 0
    unknown = ServerAssignment(2)
    assert [unknown.place((5,), 20), unknown.place((7,), 28), unknown.place((1,), 4)] == [0, 1, 0]


def test_staleness_of_several_workers_adds_up() -> None:
    first, second = Staleness(), Staleness()
    for updates in (0, 1, 1):
        first.add(updates)
    second.add(40)
    summary = Staleness.joined([first, second]).summary()
    assert (summary["updates"], summary["max"], summary["mean"]) == (4, 40, 10.5)
    assert (summary["histogram"][:2], summary["histogram"][-1]) == ([1, 2], 1)


def on_the_line(listener: Any, rank: int, folder: Path) -> Context:
    spec = RunSpec(strategy="tf-ps", workers=1, global_batch=4, steps=1, collective_timeout_seconds=10)
    process = Process(rank, 2, "chief" if rank == 0 else "worker", 0, (0,))
    fd = listener.fileno() if rank == 0 else None
    return Context(spec, process, Rendezvous("127.0.0.1", listener.getsockname()[1], fd, RunFolder(folder)))


@pytest.mark.parametrize("last_words", [{"updates": 3}, None], ids=["done", "lost"])
def test_a_serving_process_ends_with_the_chief_and_knows_whether_it_was_done(
    last_words: dict[str, Any] | None, tmp_path: Path
) -> None:
    heard: list[Any] = []

    def serve(context: Context) -> None:
        with connect_to_chief(context) as line:
            try:
                heard.append(receive_details(line))
            except ConnectionError as error:
                heard.append(str(error))

    with held_port("127.0.0.1") as listener:
        serving = threading.Thread(target=serve, args=(on_the_line(listener, 1, tmp_path),))
        serving.start()
        lines = accept_members(on_the_line(listener, 0, tmp_path))
        assert list(lines) == [1]
        if last_words is not None:
            send_details(lines[1], last_words)
        assert heard == []
        lines[1].close()
        serving.join(timeout=10)
    assert heard == [last_words if last_words is not None else "the chief ended before it was done"]
