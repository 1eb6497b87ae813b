"""What a footprint says is sent and held, against the link's own counters and the framework's own tensors."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.contract.context import Context, Process, Rendezvous, spec_facts
from paceline.plan import complete, refusal
from paceline.runs.probe import probe
from paceline.spec import Precision, RunSpec
from paceline.strategies import Strategy, strategies, strategy
from paceline.systems import local_system

WORKERS = 2
IN_PROCESSES, IN_HALF = "processes=true", 'precision="bf16"'
# Of what is sent; TensorFlow's and JAX's messages have longer headers than gloo's.
ROOM_FOR_HEADERS = {"torch": 0.02, "tensorflow": 0.05, "jax": 0.05}
# Of gloo in a step of two workers, whatever the size of its messages: where next to nothing is sent, they weigh more.
HEADER_BYTES = 2048
REAL = [chosen for chosen in strategies().values() if chosen.framework is not None]


def spec_of(chosen: Strategy, **fields: Any) -> RunSpec:
    workers = chosen.needs.fixed_workers or WORKERS
    values = {
        "strategy": chosen.name,
        "workers": workers,
        "global_batch": 64,
        "train_samples": 2048,
        "steps": 2,
        **fields,
    }
    return complete(RunSpec.model_validate(values))


def about(promised: float, chosen: Strategy) -> Any:
    """What the link may have carried for so many bytes."""
    return pytest.approx(promised, rel=ROOM_FOR_HEADERS[str(chosen.framework)], abs=HEADER_BYTES)


def runs_here(chosen: Strategy) -> bool:
    return refusal(spec_of(chosen), local_system(), probe) is None


def several_processes(chosen: Strategy) -> bool:
    return runs_here(chosen) and sum(role.processes for role in chosen.needs.roles(spec_of(chosen))) > 1


def may_have_processes(chosen: Strategy) -> bool:
    """Whether its workers may each have a process of their own, by a knob."""
    return runs_here(chosen) and any(knob.name == "processes" for knob in chosen.knobs)


# One of each way to send: a ring, its halves, servers, neighbours in a line. The others, and those of TensorFlow and
# JAX, are looked at in `make soak`.
USUAL = ("torch-ddp", "torch-fsdp", "torch-ps-sync", "torch-pipeline")


# Those whose messages have two bytes in bf16, by autocast and by FSDP.
HALVED = ("torch-fsdp", "torch-layers", "torch-pipeline", "torch-tensor", "torch-mesh")


def cases(chosen: list[Strategy]) -> list[Any]:
    return [
        pytest.param(
            one, id=one.name,
            marks=[getattr(pytest.mark, str(one.framework))] + [pytest.mark.soak] * (one.name not in USUAL),
        )
        for one in chosen
    ]  # fmt: skip


@pytest.fixture(scope="module")
def namespace() -> Iterator[str]:
    """A network namespace of our own, whose loopback link carries nothing but the runs."""
    name = f"paceline-test-{os.getpid()}"
    if (
        shutil.which("ip") is None
        or subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode
    ):
        pytest.skip("network namespaces need root and iproute2")
    subprocess.run(["ip", "netns", "exec", name, "ip", "link", "set", "lo", "up"], check=True)
    yield name
    subprocess.run(["ip", "netns", "delete", name], check=True)


@pytest.fixture(scope="module")
def carried(namespace: str, request: pytest.FixtureRequest) -> dict[str, Any]:
    asked = [item.callspec.params["chosen"] for item in request.session.items
             if item.path == request.path and "carried" in item.fixturenames]  # fmt: skip
    names = [chosen.name for chosen in REAL if chosen in asked and several_processes(chosen)]
    names += [f"{chosen.name}:{IN_HALF}" for chosen in REAL if chosen in asked and chosen.name in HALVED]
    names += [f"{chosen.name}:{IN_PROCESSES}" for chosen in REAL if chosen in asked and may_have_processes(chosen)]
    script = Path(__file__).parent / "link_bytes.py"
    command = ["ip", "netns", "exec", namespace, sys.executable, str(script), str(WORKERS), *names]
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=900)
    return dict(json.loads(found.stdout.strip().splitlines()[-1]))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("chosen", cases([one for one in REAL if several_processes(one)]))
def test_bytes_sent_are_what_the_link_carried(chosen: Strategy, carried: dict[str, Any]) -> None:
    spec = spec_of(chosen)
    promised = chosen.footprint(spec, spec_facts(spec)).sent_bytes
    assert isinstance(carried[chosen.name], float), carried[chosen.name]
    assert carried[chosen.name] == about(promised, chosen)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("chosen", cases([one for one in REAL if one.name in HALVED]))
def test_bytes_sent_in_bf16_are_what_the_link_carried(chosen: Strategy, carried: dict[str, Any]) -> None:
    spec = spec_of(chosen, precision="bf16")
    promised, seen = chosen.footprint(spec, spec_facts(spec)).sent_bytes, carried[f"{chosen.name}:{IN_HALF}"]
    assert isinstance(seen, float), seen
    assert seen == about(promised, chosen)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("chosen", cases([one for one in REAL if may_have_processes(one)]))
def test_bytes_sent_between_processes_are_what_the_link_carried(chosen: Strategy, carried: dict[str, Any]) -> None:
    spec = spec_of(chosen, knobs={"processes": True})
    promised, seen = chosen.footprint(spec, spec_facts(spec)).sent_bytes, carried[f"{chosen.name}:{IN_PROCESSES}"]
    assert isinstance(seen, float), seen
    assert seen == about(promised, chosen)


@pytest.mark.torch
@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-pure"])
@pytest.mark.parametrize("workload", ["mnist-small", "mnist-large", "mlp", "transformer"])
def test_bytes_of_activations_are_those_that_autograd_keeps(workload: str, precision: Precision) -> None:
    torch = pytest.importorskip("torch")
    from paceline.frameworks.torch.evaluation import cross_entropy
    from paceline.frameworks.torch.precision import compute_in_half, set_precision
    from paceline.frameworks.torch.resident_data import ResidentData
    from paceline.frameworks.torch.training import build

    spec = complete(RunSpec(workload=workload, strategy="torch-single", global_batch=16, steps=1, precision=precision))
    context = Context(spec, Process(0, 1, "worker", 0, (0,)), Rendezvous("", 0))
    module, device = build(context, torch.device("cpu")), torch.device("cpu")
    compute_in_half(spec, module)
    data = ResidentData.load(context.data, device, channels_last=True)
    inputs, targets = data.batch(data.train, torch.arange(16))
    parameters = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    kept: dict[int, int] = {}

    def note(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor), set_precision(spec)():
        loss = cross_entropy(module(inputs), targets)
    promised = strategy("torch-single").footprint(spec, spec_facts(spec)).groups[0].activation_bytes
    assert loss.requires_grad
    # Where the parameters of a norm are in bf16, its means and deviations are so too on a CPU; on a GPU they are not.
    tolerance = 5e-3 if precision == "bf16-pure" else 1e-3
    assert sum(kept.values()) - targets.nbytes == pytest.approx(promised, rel=tolerance)
