"""Predictions over links: what bytes and delays take, what hides, and the limits that physics sets."""

import pytest

from paceline.contract.context import spec_facts
from paceline.link import NetworkLink
from paceline.plan import complete
from paceline.predict.links import FRAME_OVERHEAD, LinkCosts
from paceline.predict.prediction import Prediction, Predictor
from paceline.predict.question import Question
from paceline.predict.transfers import Costs
from paceline.spec import RunSpec
from paceline.strategies import strategies
from paceline.systems.files import load_hardware

HARDWARE = load_hardware("cpu-2-cores")
SLOW = NetworkLink.from_text("100mbit")
FAR = NetworkLink.from_text("100mbit:20ms")
# The model goes around in one of eight steps; asynchronous workers that stand in line at a server hide their delays.
LEAST_SHARE = {"torch-local-sgd": 1 / 8, "torch-downpour": 0.0, "tf-ps": 0.0}
SEVERAL_PROCESSES = [
    name
    for name in strategies()
    if name.startswith(("torch-", "tf-multi", "tf-ps")) and name not in ("torch-single", "torch-dp")
]


def run_of(name: str, **fields: object) -> RunSpec:
    values = {"workload": "mlp", "strategy": name, "workers": 2, "global_batch": 64, "steps": 1, **fields}
    return complete(RunSpec.model_validate(values))


def predict(name: str, **fields: object) -> Prediction:
    spec = run_of(name, **fields)
    return Predictor(HARDWARE, spec_facts(spec), 1000).predict(spec)


def test_an_all_reduce_of_two_takes_its_payload_at_the_links_rate() -> None:
    assert LinkCosts(SLOW).wire_seconds("all-reduce", 12.5e6, 2) == pytest.approx(FRAME_OVERHEAD)
    assert LinkCosts(SLOW).wire_seconds("all-reduce", 12.5e6, 4) == pytest.approx(1.5 * FRAME_OVERHEAD)
    assert LinkCosts(SLOW).wire_seconds("send", 12.5e6, 2) == pytest.approx(FRAME_OVERHEAD)


def test_delays_add_up_over_hops_and_announcements() -> None:
    assert LinkCosts(SLOW).delay_seconds("all-reduce", 1e6, 2) == 0
    assert LinkCosts(FAR).delay_seconds("send", 8, 2) == pytest.approx(0.02)
    assert LinkCosts(FAR).delay_seconds("send", 1e6, 2) == pytest.approx(0.04)
    assert LinkCosts(FAR).delay_seconds("all-reduce", 1e6, 2) == pytest.approx(5 * 0.02)
    assert LinkCosts(FAR).delay_seconds("all-gather", 1e6, 2) == pytest.approx(2.5 * 0.02)


def test_the_slower_of_cores_and_wire_decides() -> None:
    plain, linked = Costs(HARDWARE, "gloo"), Costs(HARDWARE, "gloo", link=LinkCosts(SLOW))
    fast = Costs(HARDWARE, "gloo", link=LinkCosts(NetworkLink.from_text("400gbit")))
    cores = plain.seconds("all-reduce", 1e7, 2)
    assert linked.device_seconds("all-reduce", 1e7, 2) == cores
    assert linked.seconds("all-reduce", 1e7, 2) == pytest.approx(0.8 * FRAME_OVERHEAD)
    assert fast.seconds("all-reduce", 1e7, 2) == cores


@pytest.mark.parametrize("name", SEVERAL_PROCESSES)
def test_a_slower_link_never_makes_a_step_shorter_and_parts_add_up(name: str) -> None:
    steps = {}
    for link in ("none", "400gbit", "100mbit", "100mbit:20ms", "10mbit", "1mbit"):
        parts = predict(name, link=link).parts
        assert parts.compute + parts.exposed + parts.bubble + parts.waiting == pytest.approx(parts.step)
        assert min(parts.exposed, parts.bubble, parts.waiting) >= -1e-12
        steps[link] = parts.step * (1 + 1e-9)
    assert steps["none"] <= steps["400gbit"] <= steps["100mbit"] <= steps["10mbit"] <= steps["1mbit"]
    assert steps["100mbit"] + 0.02 * LEAST_SHARE.get(name, 1.0) <= steps["100mbit:20ms"]
    # A tenth of the rate, and all of a long step is sending.
    assert steps["1mbit"] == pytest.approx(10 * steps["10mbit"], rel=0.25)


def test_no_step_is_shorter_than_its_gradients_take() -> None:
    gradient_bytes = 4 * spec_facts(run_of("torch-ddp")).parameters
    assert predict("torch-ddp", link="100mbit").parts.step >= gradient_bytes / SLOW.bytes_per_second
    assert predict("torch-ddp", link="100mbit:20ms").parts.step >= gradient_bytes / FAR.bytes_per_second + 0.02


def test_bytes_on_a_wire_keep_no_core_busy() -> None:
    near, far = (predict("torch-ddp", link=link).parts.cpu_seconds for link in ("none", "10mbit"))
    assert far <= near * 1.01


def test_a_question_asks_about_each_link_and_once_about_one_worker() -> None:
    question = Question(HARDWARE, workload="mlp", workers=(1, 2), links=(None, SLOW, FAR))
    specs = [(spec.workers, spec.link.text if spec.link else None) for spec in question.specs("torch-ddp")]
    assert specs == [(1, None), (2, None), (2, "100mbit"), (2, "100mbit:20ms")]


def test_a_link_does_not_go_with_gpus() -> None:
    question = Question(load_hardware("8xh100-nvlink"), workload="mlp", workers=(2,), links=(SLOW,))
    (spec,) = question.specs("torch-ddp")
    assert "link 100mbit is between processes on CPU cores" in str(question.why_not(spec))
