"""The data-parallel PyTorch strategies in all their settings: what each holds, and that none strays from one worker."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.contract.context import spec_facts
from paceline.plan import complete, refusal
from paceline.record import Record
from paceline.spec import ModelFile, RunSpec
from paceline.strategies import strategy
from paceline.strategies.torch.ddp import TOLERANCES
from paceline.systems import System
from paceline.systems.local import Gpu

pytestmark = pytest.mark.torch
EXACT = 1e-4
# Adam divides each gradient by its own size, so rounding in one near zero moves a weight by a share of the step.
WEIGHT_TOLERANCE = 2e-4
COMPRESSIONS = [kind for kind in TOLERANCES if kind != "none"]

# Residual blocks with real channels-last convolutions, a normalisation that has no running statistics, a parameter of
# the model itself, and two layers that share their weights.
RESNET = """
import numpy as np
import torch
from torch import nn


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.second = nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.GroupNorm(2, width)

    def forward(self, x):
        return torch.relu(x + self.second(torch.relu(self.norm(self.first(x)))))


class Net(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 6, 3, padding=1), norm
        self.blocks = nn.Sequential(Residual(6), Residual(6))
        self.mix, self.remix = nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)
        self.remix.weight = self.mix.weight
        self.shift = nn.Parameter(torch.zeros(6))
        self.head = nn.Linear(6, 5)

    def forward(self, x):
        x = self.blocks(torch.relu(self.norm(self.stem(x)))).mean((2, 3))
        return self.head(torch.relu(self.remix(self.mix(x))) + self.shift)


def build():
    return Net(nn.Identity())


def build_with_batch_norm():
    return Net(nn.BatchNorm2d(6))


def data():
    random = np.random.default_rng(0)
    inputs = random.normal(size=(96, 3, 8, 8)).astype("float32")
    targets = (inputs[:, 0].mean((1, 2)) * 20).clip(-2, 2).round().astype("int64") + 2
    return inputs[:64], targets[:64], inputs[64:], targets[64:]
"""
# On sequences a dense layer returns a view, which is then changed in place.
IN_PLACE = """
import numpy as np
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 5)

    def forward(self, x):
        x = self.first(x)
        x += 0.5
        y = self.second(torch.tanh(x))
        y += x
        return self.head(y.mean(1))


build = Net


def data():
    inputs = np.random.default_rng(0).normal(size=(96, 3, 4)).astype("float32")
    targets = (inputs.mean((1, 2)) * 5).clip(-2, 2).round().astype("int64") + 2
    return inputs[:64], targets[:64], inputs[64:], targets[64:]
"""
OWN_OPTIMIZER = """

def optimizer(parameters):
    parameters = list(parameters)
    flat, other = [p for p in parameters if p.ndim == 1], [p for p in parameters if p.ndim > 1]
    return torch.optim.AdamW([{"params": other}, {"params": flat, "weight_decay": 0.0}], lr=0.01, weight_decay=0.1)
"""


@pytest.fixture
def own(tmp_path: Path, trained: Any) -> Callable[..., Any]:
    """Trains a model file."""

    def run(text: str, function: str = "build", **fields: Any) -> Any:
        file = tmp_path / "my_resnet.py"
        file.write_text(text)
        model = ModelFile.from_text(f"{file}:{function}")
        return trained.again(complete(RunSpec.parse({"model": model, "global_batch": 16, "steps": 8, **fields}, "own")))

    return run


def held(record: Record) -> list[tuple[float, float]]:
    """Bytes of parameters and optimizer state that each rank's tensors have."""
    parts = [rank.details["held_bytes"] for rank in record.ranks]
    return [(part["parameters"], part["optimizer"]) for part in parts]


def foretold(record: Record) -> list[tuple[float, float]]:
    """The same as the footprint has them."""
    footprint = strategy(record.spec.strategy).footprint(record.spec, spec_facts(record.spec))
    return [(group.parameter_bytes, group.optimizer_bytes) for group in footprint.groups for _ in range(group.ranks)]


def assert_follows_one_worker(spread: Any, trained: Any, tolerance: float = EXACT) -> None:
    single = trained.again(strategy(spread.record.spec.strategy).testing.reference(spread.record.spec))
    np.testing.assert_allclose(spread.losses, single.losses, rtol=tolerance)
    if tolerance == EXACT:
        for name, array in single.weights.items():
            np.testing.assert_allclose(spread.weights[name], array, atol=WEIGHT_TOLERANCE, err_msg=name)


def refused(**fields: Any) -> str:
    """Why this run cannot be made on a machine with PyTorch and no GPU."""
    machine = System("cpu", (0, 1), 1 << 30, frameworks={"torch": "2"})
    spec = complete(RunSpec.parse({"dataset": "mnist-5k", "global_batch": 48, "epochs": 1, **fields}, "test"))
    return refusal(spec, machine, lambda _spec: pytest.fail("no model to look at")) or "runs"


@pytest.mark.parametrize("workload", ["mnist-small", "transformer"])
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_compressed_gradients_stay_within_the_tolerance_that_is_stated(
    compression: str, workload: str, trained: Any
) -> None:
    spread = trained(workload, strategy="torch-ddp", workers=2, knobs={"compression": compression})
    assert_follows_one_worker(spread, trained, TOLERANCES[compression])
    assert held(spread.record) == foretold(spread.record)


def test_compressed_gradients_are_not_those_of_an_uncompressed_run(trained: Any) -> None:
    runs = {
        kind: trained("mnist-small", strategy="torch-ddp", workers=2, knobs={"compression": kind})
        for kind in TOLERANCES
    }
    assert all(np.any(runs[kind].losses != runs["none"].losses) for kind in COMPRESSIONS)


@pytest.mark.parametrize(
    ("workload", "knobs"),
    [
        ("mnist-small", {"accumulation": 4}),
        ("transformer", {"accumulation": 2, "gradient_as_bucket_view": False}),
        ("mnist-small", {"static_graph": True}),
        ("transformer", {"bucket_mb": 0.05}),
        ("mnist-small", {"bucket_mb": 100.0, "gradient_as_bucket_view": False}),
    ],
    ids=str,
)
def test_how_ddp_sends_gradients_does_not_change_them(workload: str, knobs: dict[str, Any], trained: Any) -> None:
    assert_follows_one_worker(trained(workload, strategy="torch-ddp", workers=2, knobs=knobs), trained)


@pytest.mark.parametrize(
    ("view", "workers"), [(True, 2), (False, 2), (True, 4), pytest.param(False, 4, marks=pytest.mark.soak)]
)
def test_zero_divides_the_optimizer_state_as_the_footprint_says(view: bool, workers: int, trained: Any) -> None:
    knobs = {"parameters_as_bucket_view": view}
    spread = trained("mnist-small", strategy="torch-zero", workers=workers, knobs=knobs)
    assert_follows_one_worker(spread, trained)
    assert held(spread.record) == foretold(spread.record)
    single = trained("mnist-small", strategy="torch-single")
    assert sum(state for _, state in held(spread.record)) == held(single.record)[0][1]


@pytest.mark.parametrize(
    ("workload", "knobs"),
    [
        ("mnist-small", {"wrap": "whole"}),
        ("mnist-small", {"reshard_after_forward": False}),
        ("transformer", {"reshard_after_forward": False}),
        ("transformer", {"wrap": "whole", "reshard_after_forward": False}),
    ],
    ids=str,
)
def test_what_fsdp_gathers_and_when_does_not_change_the_result(
    workload: str, knobs: dict[str, Any], trained: Any
) -> None:
    spread = trained(workload, strategy="torch-fsdp", workers=2, knobs=knobs)
    assert_follows_one_worker(spread, trained)
    assert held(spread.record) == foretold(spread.record)


@pytest.mark.parametrize("workers", [2, pytest.param(4, marks=pytest.mark.soak)])
def test_fsdp_may_reduce_gradients_in_each_of_several_passes(workers: int, trained: Any) -> None:
    knobs = {"reduce": "each", **({"hsdp_replicas": 2} if workers > 2 else {})}
    spread = trained("transformer", strategy="torch-fsdp", workers=workers, accumulation=2, clip=0.2, knobs=knobs)
    assert_follows_one_worker(spread, trained)
    assert held(spread.record) == foretold(spread.record)


@pytest.mark.parametrize("workload", ["mnist-small", pytest.param("transformer", marks=pytest.mark.soak)])
def test_fsdp_in_two_groups_of_two_holds_each_half_twice(workload: str, trained: Any) -> None:
    spread = trained(workload, strategy="torch-fsdp", workers=4, knobs={"hsdp_replicas": 2})
    assert_follows_one_worker(spread, trained)
    assert held(spread.record) == foretold(spread.record)
    assert held(spread.record)[:2] == held(spread.record)[2:]
    assert (
        sum(parameters for parameters, _ in held(spread.record)[:2]) == spec_facts(spread.record.spec).parameter_bytes
    )


def test_fsdp_on_three_workers_divides_arrays_that_do_not_divide(trained: Any) -> None:
    spread = trained("mnist-small", strategy="torch-fsdp", workers=3, global_batch=48)
    assert_follows_one_worker(spread, trained)
    assert held(spread.record) == foretold(spread.record)
    assert len(set(held(spread.record))) > 1


@pytest.mark.parametrize("optimizer", [{"name": "sgd", "momentum": 0.9, "lr": 0.05}, {"name": "adagrad", "lr": 0.01}])
@pytest.mark.parametrize("name", ["torch-zero", "torch-fsdp"])
def test_divided_state_is_counted_for_other_optimizers_too(name: str, optimizer: dict[str, Any], trained: Any) -> None:
    spread = trained("mnist-small", strategy=name, workers=2, optimizer=optimizer)
    assert_follows_one_worker(spread, trained)
    assert held(spread.record) == foretold(spread.record)


@pytest.mark.parametrize("name", ["torch-zero", "torch-fsdp", "torch-local-sgd"])
def test_plain_memory_order_gives_the_same_losses(name: str, trained: Any) -> None:
    runs = [trained("mnist-small", strategy=name, workers=2, memory_format=kind).losses
            for kind in ("contiguous", "channels_last")]  # fmt: skip
    np.testing.assert_allclose(runs[0], runs[1], rtol=EXACT)


def test_local_sgd_follows_one_worker_in_its_warm_up_and_then_goes_its_own_way(trained: Any) -> None:
    spread = trained("mnist-small", strategy="torch-local-sgd", workers=2, knobs={"warmup_steps": 10})
    single = trained("mnist-small", strategy="torch-single")
    np.testing.assert_allclose(spread.losses[:11], single.losses[:11], rtol=EXACT)
    assert not np.allclose(spread.losses[12:], single.losses[12:], rtol=EXACT)
    assert [rank.details["updates"] for rank in spread.record.ranks] == [20, 20]


def test_local_sgd_that_averages_after_each_plain_step_is_data_parallel_training(trained: Any) -> None:
    # Not on the CNN: there a bias that rounding moves across zero turns the gradient of a whole background on or off.
    spread = trained(
        "transformer", strategy="torch-local-sgd", workers=2, optimizer={"name": "sgd", "lr": 0.05},
        knobs={"every": 1, "warmup_steps": 0},
    )  # fmt: skip
    assert_follows_one_worker(spread, trained)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_local_sgd_brings_the_loss_down_and_holds_what_it_says(momentum: float, trained: Any) -> None:
    knobs = {"every": 4, "outer_momentum": momentum}
    spread = trained("mnist-small", strategy="torch-local-sgd", workers=4, knobs=knobs, steps=48)
    assert spread.losses[-8:].mean() < 0.5 * spread.losses[0]
    assert held(spread.record) == foretold(spread.record)


def test_the_outer_step_of_local_sgd_is_nesterov_momentum_on_what_the_workers_moved() -> None:
    import torch

    from paceline.strategies.torch.local_sgd.job import OuterMomentum

    start, random = torch.arange(4.0), torch.Generator().manual_seed(0)
    expected = torch.nn.Parameter(start.clone())
    reference = torch.optim.SGD([expected], lr=0.7, momentum=0.9, nesterov=True)
    outer, row = OuterMomentum(start, lr=0.7, momentum=0.9), start.clone()
    for _ in range(3):
        row += torch.randn(4, generator=random)
        expected.grad = expected.detach() - row
        reference.step()
        outer.move(row)
        torch.testing.assert_close(row, expected.detach())


def own_cases() -> list[Any]:
    """Every strategy and setting with one of the two optimizers; the rest is left to the long tests."""
    ways = [("torch-ddp", {}), ("torch-ddp", {"accumulation": 2}), ("torch-zero", {}), ("torch-fsdp", {}),
            ("torch-fsdp", {"wrap": "whole", "reshard_after_forward": False}),
            ("torch-mesh", {"accumulation": 2})]  # fmt: skip
    found = []
    for number, (name, knobs) in enumerate(ways):
        for has_own in (True, False):
            soak = [pytest.mark.soak] * (has_own == bool(number % 2))
            text, whose = (RESNET + OWN_OPTIMIZER, "own") if has_own else (RESNET, "run's")
            found.append(pytest.param(text, name, knobs, id=f"{whose} optimizer-{name}-{knobs}", marks=soak))
    return found


@pytest.mark.parametrize(("text", "name", "knobs"), own_cases())
def test_a_model_of_ones_own_follows_one_worker(
    text: str, name: str, knobs: dict[str, Any], own: Callable[..., Any], trained: Any
) -> None:
    assert_follows_one_worker(own(text, strategy=name, workers=2, knobs=knobs), trained)


@pytest.mark.parametrize("name", ["torch-ddp", "torch-zero", "torch-fsdp"])
def test_a_model_that_leaves_out_a_layer_is_taken_too(name: str, own: Callable[..., Any], trained: Any) -> None:
    text = RESNET.replace("self.head = ", "self.spare = nn.Linear(3, 3)\n        self.head = ")
    knobs = {"find_unused_parameters": True}
    assert_follows_one_worker(own(text, strategy=name, workers=2, knobs=knobs), trained)


@pytest.mark.parametrize("wrap", ["layers", "whole"])
def test_fsdp_takes_a_model_that_changes_a_layers_output_in_place(
    wrap: str, own: Callable[..., Any], trained: Any
) -> None:
    assert_follows_one_worker(own(IN_PLACE, strategy="torch-fsdp", workers=2, knobs={"wrap": wrap}), trained)


def test_fsdp_says_what_to_do_about_a_parameter_without_a_dimension(own: Callable[..., Any]) -> None:
    text = RESNET.replace("nn.Parameter(torch.zeros(6))", "nn.Parameter(torch.zeros(()))")
    with pytest.raises(AssertionError, match=r"FSDP cannot divide shift of my_resnet.py:build, .*torch.zeros\(1\)"):
        own(text, strategy="torch-fsdp", workers=2)


@pytest.mark.parametrize("name", ["torch-ddp", "torch-zero", "torch-fsdp", "torch-local-sgd"])
def test_a_model_with_running_statistics_trains_and_leaves_one_model(name: str, own: Callable[..., Any]) -> None:
    spread = own(RESNET, "build_with_batch_norm", strategy=name, workers=2)
    assert np.isfinite(spread.losses).all()
    assert {"norm.running_mean", "shift"} <= spread.weights.keys()


def test_powersgd_takes_a_model_whose_convolutions_are_stored_channels_last(own: Callable[..., Any]) -> None:
    knobs = {"compression": "powersgd", "powersgd_rank": 1}
    assert np.isfinite(own(RESNET, strategy="torch-ddp", workers=2, knobs=knobs).losses).all()


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"strategy": "torch-ddp", "workers": 4, "knobs": {"accumulation": 5}}, "12 does not divide into 5 micro"),
        ({"strategy": "torch-ddp", "workers": 2, "knobs": {"bucket_mb": 0.0}}, "must be more than 0"),
        (
            {"strategy": "torch-ddp", "workers": 2, "knobs": {"accumulation": 2, "static_graph": True}},
            "static_graph does not go with accumulation",
        ),
        ({"strategy": "torch-ddp", "workers": 2, "knobs": {"algorithm": "tree"}}, "gloo on CPU has only its ring"),
        ({"strategy": "torch-fsdp", "workers": 4, "knobs": {"hsdp_replicas": 3}}, "4 workers do not divide into 3"),
        ({"strategy": "torch-fsdp", "workers": 4, "knobs": {"hsdp_replicas": 4}}, "nothing to divide"),
        ({"strategy": "torch-fsdp", "workers": 2, "optimizer": {"name": "lbfgs"}}, "L-BFGS needs all of them"),
        ({"strategy": "torch-zero", "workers": 2, "optimizer": {"name": "lbfgs"}}, "L-BFGS needs all of them"),
        ({"strategy": "torch-local-sgd", "workers": 2, "knobs": {"every": 0}}, "every must be at least 1"),
        ({"strategy": "torch-local-sgd", "workers": 2, "knobs": {"outer_momentum": 1.0}}, "less than 1"),
        ({"strategy": "torch-dp", "workers": 2}, "on CPU it silently runs one forward on the whole batch"),
        ({"strategy": "torch-dp", "workers": 2, "device": "cuda"}, "nn.DataParallel needs CUDA devices"),
    ],
)
def test_what_cannot_work_is_refused_with_the_reason(fields: dict[str, Any], reason: str) -> None:
    assert reason in refused(**fields)


def test_dataparallel_may_have_one_gpu_for_several_workers_and_ddp_may_not() -> None:
    machine = System("cpu", (0, 1), 1 << 30, gpus=(Gpu("one", 1 << 30),), frameworks={"torch": "2"})
    reasons = [
        refusal(
            RunSpec(strategy=name, workers=4, device="cuda", dataset="mnist-5k", global_batch=64, epochs=1),
            machine,
            lambda _spec: pytest.fail("no model to look at"),
        )
        for name in ("torch-dp", "torch-ddp")
    ]
    assert reasons == [None, "4 workers need as many GPUs and this machine has 1"]


@pytest.mark.gpu
@pytest.mark.parametrize("workload", ["mnist-small", "transformer"])
def test_dataparallel_follows_one_worker_on_a_gpu(workload: str, trained: Any) -> None:
    assert_follows_one_worker(trained(workload, strategy="torch-dp", workers=2, device="cuda"), trained)
