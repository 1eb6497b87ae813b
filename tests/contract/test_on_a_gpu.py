"""The same promise on CUDA devices: whole GPUs, slices of one, recorded steps, other precisions."""

from typing import Any

import numpy as np
import pytest

from contract.test_real_models import SMALL, small
from paceline.contract.strategy import on_baseline
from paceline.spec import Execution, Precision
from paceline.strategies import Strategy, strategies
from paceline.systems import local_system

HERE = local_system()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not HERE.gpus, reason="needs a CUDA device")]
needs_slices = pytest.mark.skipif(HERE.no_slices is not None, reason=f"a GPU cannot be cut here: {HERE.no_slices}")

SYNCHRONOUS = [
    chosen
    for chosen in strategies().values()
    if chosen.synchronous and chosen.framework in ("torch", "jax") and "cuda-slice" in chosen.needs.devices
]
WORKLOADS = ["mnist-small", "transformer"]
# How far 20 losses may stray from those in fp32: tf32 keeps 10 bits of a factor's fraction, bf16 keeps 7 of everything.
PRECISIONS: dict[Precision, float] = {"tf32": 5e-3, "bf16": 5e-2}
RECORDED: tuple[Execution, ...] = ("compiled", "graph", "compiled+graph")


def cases() -> list[Any]:
    """Two and four workers for a strategy whose workers can share a GPU; as many workers as GPUs, at most 4, else."""
    found = []
    for chosen in SYNCHRONOUS:
        alone = min(4, max(1, len(HERE.gpus)))
        counts = (
            (chosen.needs.fixed_workers,)
            if chosen.needs.fixed_workers
            else (2, 4)
            if chosen.needs.shares_gpu
            else (alone,)
        )
        found += [pytest.param(chosen, count, id=f"{chosen.name}-{count}") for count in counts]
    return found


def follows(trained: Any, strategy: Strategy, workload: str, **fields: Any) -> Any:
    """Trains it and its reference on the same device, and holds the losses against each other."""
    spread = trained(workload, strategy=strategy.name, **fields, **strategy.testing.fields)
    single = trained.again(strategy.testing.reference(spread.record.spec))
    assert len(single.losses) == len(spread.losses) == 20
    np.testing.assert_allclose(spread.losses, single.losses, rtol=strategy.testing.tolerance)
    return spread


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize(("strategy", "workers"), cases())
def test_loss_on_a_gpu_follows_one_worker(strategy: Strategy, workers: int, workload: str, trained: Any) -> None:
    follows(trained, strategy, workload, workers=workers, device="cuda")


@needs_slices
@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize(
    "strategy", [one for one in SYNCHRONOUS if not one.needs.fixed_workers], ids=lambda one: one.name
)
def test_loss_on_slices_of_a_gpu_follows_one_worker(
    strategy: Strategy, workers: int, workload: str, trained: Any
) -> None:
    spread = follows(trained, strategy, workload, workers=workers, device="cuda-slice", slices=4)
    links = [rank.details.get("link_bytes_per_second") for rank in spread.record.ranks]
    assert all(link > 0 for link in links if link is not None)
    assert spread.record.energy.source == "nvml"
    assert spread.record.gpus[0].clock_mhz > 0


@needs_slices
@pytest.mark.parametrize(
    "fields",
    [
        {"strategy": "torch-ddp", "workers": 2},
        {"strategy": "torch-fsdp", "workers": 4},
        {"strategy": "torch-pipeline", "workers": 2},
        {"strategy": "torch-mesh", "layout": {"shard": 2, "tensor": 2}},
        {"strategy": "jax-data", "workers": 2},
    ],
    ids=lambda fields: fields["strategy"],
)
def test_slices_train_the_same_through_memory_and_over_sockets(fields: dict[str, Any], trained: Any) -> None:
    fast, slow = (
        trained("transformer", **fields, device="cuda-slice", slices=4, transport=transport)
        for transport in ("auto", "socket")
    )
    carried = fast.record.ranks[0].details
    if carried["slice_transport"] != "p2p":
        pytest.skip(f"slices talk over sockets here: {carried['slice_transport_reason']}")
    assert slow.record.ranks[0].details["slice_transport"] == "socket"
    np.testing.assert_allclose(fast.losses, slow.losses, rtol=1e-4)


@needs_slices
@pytest.mark.parametrize(
    ("model", "layout"),
    [
        ("llama", "shard=2,tensor=2"),
        ("llama", "context=2"),
        ("llama", "tensor=2,context=2"),
        ("gpt", "pipeline=2,context=2"),
        ("gpt", "shard=2,tensor=2"),
        ("mixtral", "shard=4,expert=2"),
        ("mixtral", "shard=2,tensor=2,expert=2"),
        ("vit", "shard=2"),
    ],
)
def test_a_layout_trains_a_real_model_on_slices_as_on_one_worker(model: str, layout: str, trained: Any) -> None:
    spec = small(model, strategy="torch-mesh", layout=layout, device="cuda-slice", slices=4)
    spread, single = trained.again(spec), trained.again(on_baseline(spec))
    np.testing.assert_allclose(spread.losses, single.losses, rtol=1e-4)


@needs_slices
@pytest.mark.parametrize("schedule", ["1f1b", "zbv"])
def test_gradients_of_images_cross_a_pipeline_in_their_order(schedule: str, trained: Any) -> None:
    fields = {"knobs": {"schedule": schedule}, "device": "cuda-slice", "slices": 2}
    spec = small("resnet", strategy="torch-mesh", layout="pipeline=2", **fields)
    spread, single = trained.again(spec), trained.again(on_baseline(spec))
    np.testing.assert_allclose(spread.losses, single.losses, rtol=1e-4)


@needs_slices
@pytest.mark.parametrize(
    ("model", "layout", "precision"),
    [
        ("gpt", "context=2", "fp32"),
        ("gpt", "context=2", "bf16"),
        ("llama", "context=4", "bf16"),
        ("llama", "shard=2,context=2", "fp32"),
    ],
)
def test_keys_and_values_that_go_round_a_ring_train_as_on_one_worker(
    model: str, layout: str, precision: Precision, trained: Any
) -> None:
    options = {**SMALL[model]["options"], "sequence": 256}
    fields = {"options": options, "precision": precision, "device": "cuda-slice", "slices": 4}
    spread = trained.again(small(model, strategy="torch-mesh", layout=layout, knobs={"attention": "ring"}, **fields))
    single = trained.again(on_baseline(spread.record.spec))
    assert {rank.details["attention"] for rank in spread.record.ranks} == {"ring"}
    np.testing.assert_allclose(spread.losses, single.losses, rtol=PRECISIONS.get(precision, 1e-4))


@needs_slices
@pytest.mark.parametrize(
    ("model", "layout"),
    [
        ("gpt", "shard=8"),
        ("gpt", "shard=2,tensor=2,pipeline=2"),
        ("llama", "replicate=2,shard=2,tensor=2"),
        ("llama", "pipeline=2,shard=2,context=2"),
        ("mixtral", "shard=8,expert=4"),
        ("mixtral", "shard=2,tensor=2,pipeline=2,expert=2"),
    ],
)
def test_a_layout_trains_a_real_model_on_eight_slices_as_on_one_worker(model: str, layout: str, trained: Any) -> None:
    spec = small(model, strategy="torch-mesh", layout=layout, device="cuda-slice", slices=8, global_batch=32)
    spread, single = trained.again(spec), trained.again(on_baseline(spec))
    np.testing.assert_allclose(spread.losses, single.losses, rtol=1e-4)


@needs_slices
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("layout", ["shard=2,tensor=2", "tensor=2,pipeline=2"])
def test_compiled_blocks_that_are_split_train_as_on_one_worker(layout: str, recompute: str, trained: Any) -> None:
    fields = {"execution": "compiled", "recompute": recompute, "device": "cuda-slice", "slices": 4}
    spec = small("llama", strategy="torch-mesh", layout=layout, **fields)
    spread, single = trained.again(spec), trained.again(on_baseline(spec))
    np.testing.assert_allclose(spread.losses, single.losses, rtol=1e-4)


@needs_slices
def test_reducing_gradients_in_each_pass_trains_the_same_and_holds_less(trained: Any) -> None:
    fields = {"strategy": "torch-mesh", "layout": "shard=4", "accumulation": 4, "device": "cuda-slice", "slices": 4}
    last, each = (trained.again(small("llama", **fields, knobs={"reduce": how})) for how in ("last", "each"))
    np.testing.assert_allclose(each.losses, last.losses, rtol=1e-4)
    peaks = [max(rank.details["device_peak_bytes"] for rank in run.record.ranks) for run in (last, each)]
    assert peaks[1] < peaks[0]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("strategy", ["torch-mesh", "torch-fsdp"])
def test_a_compiled_head_with_the_loss_trains_the_same(strategy: str, precision: Precision, trained: Any) -> None:
    options = {**SMALL["gpt"]["options"], "vocabulary": 257}
    fields = {"strategy": strategy, "workers": 1, "device": "cuda", "precision": precision, "options": options}
    compiled, eager = (trained.again(small("gpt", **fields, execution=kind)) for kind in ("compiled", "eager"))
    np.testing.assert_allclose(compiled.losses, eager.losses, rtol=1e-4 if precision == "fp32" else PRECISIONS["bf16"])


@pytest.mark.parametrize("workload", WORKLOADS)
def test_loss_on_a_gpu_is_that_of_the_cpu(workload: str, trained: Any) -> None:
    there, here = (trained(workload, strategy="torch-single", device=device) for device in ("cuda", "cpu"))
    np.testing.assert_allclose(there.losses, here.losses, rtol=1e-4)


@pytest.mark.parametrize("execution", RECORDED)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_compiled_and_recorded_steps_train_the_same(workload: str, execution: Execution, trained: Any) -> None:
    plain = trained(workload, strategy="torch-single", device="cuda")
    other = trained(workload, strategy="torch-single", device="cuda", execution=execution)
    np.testing.assert_allclose(other.losses, plain.losses, rtol=1e-4)
    for name, weight in plain.weights.items():
        np.testing.assert_allclose(other.weights[name], weight, atol=2e-3)


@needs_slices
@pytest.mark.parametrize("execution", RECORDED)
def test_recorded_steps_of_ddp_train_the_same(execution: Execution, trained: Any) -> None:
    fields = {"strategy": "torch-ddp", "workers": 2, "device": "cuda-slice", "slices": 4}
    plain, other = trained("mnist-small", **fields), trained("mnist-small", **fields, execution=execution)
    np.testing.assert_allclose(other.losses, plain.losses, rtol=1e-4)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("strategy", ["torch-single", "jax-single"])
def test_other_precisions_stay_within_their_tolerance(strategy: str, precision: Precision, trained: Any) -> None:
    exact = trained("mnist-small", strategy=strategy, device="cuda")
    other = trained("mnist-small", strategy=strategy, device="cuda", precision=precision)
    np.testing.assert_allclose(other.losses, exact.losses, rtol=PRECISIONS[precision])
    assert not np.array_equal(other.losses, exact.losses)


@needs_slices
def test_recorded_steps_of_ddp_in_half_precision_stay_within_its_tolerance(trained: Any) -> None:
    fields = {"strategy": "torch-ddp", "workers": 2, "device": "cuda-slice", "slices": 4}
    exact = trained("mnist-small", **fields)
    other = trained("mnist-small", **fields, execution="compiled+graph", precision="bf16")
    np.testing.assert_allclose(other.losses, exact.losses, rtol=PRECISIONS["bf16"])


@pytest.mark.parametrize("fields", [
    {"strategy": "torch-fsdp", "workers": 1},
    {"strategy": "torch-mesh", "layout": "shard=1", "accumulation": 2},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_shards_that_wait_in_the_hosts_memory_train_the_same(
    precision: Precision, fields: dict[str, Any], trained: Any
) -> None:
    # Adam would make steps of the rounding errors in gradients that are zero: those of the biases of keys.
    sgd = {"name": "sgd", "lr": 0.1, "momentum": 0.9}
    given = {**fields, "device": "cuda", "precision": precision, "clip": 0.5, "optimizer": sgd}
    kept, waiting = (trained("transformer", **given, offload=offload) for offload in (False, True))
    # The host sums the norm of gradients in another order. In halves a last digit of it flips the rounding of a weight
    # after a while.
    np.testing.assert_allclose(waiting.losses[:10], kept.losses[:10], rtol=1e-5)
    np.testing.assert_allclose(waiting.losses, kept.losses, rtol=1e-4 if precision == "fp32" else 1e-3)
    for name, weight in kept.weights.items():
        np.testing.assert_allclose(waiting.weights[name], weight, atol=2e-3, err_msg=name)


@pytest.mark.parametrize("precision", ["fp16", "bf16-pure"])
@pytest.mark.parametrize("strategy", ["torch-single", "torch-fsdp", "torch-mesh", "torch-tensor", "torch-pipeline"])
def test_numbers_of_two_bytes_stay_near_those_of_four(strategy: str, precision: Precision, trained: Any) -> None:
    fields = {"strategy": strategy, "device": "cuda", "workers": 1, "optimizer": {"name": "sgd", "lr": 0.1}}
    exact, other = (trained("transformer", **fields, precision=kind) for kind in ("fp32", precision))
    np.testing.assert_allclose(other.losses, exact.losses, rtol=PRECISIONS["bf16"])


@needs_slices
@pytest.mark.parametrize("layout", ["shard=2", "tensor=2", "pipeline=2"])
def test_layouts_in_bf16_on_slices_stay_near_one_worker(layout: str, trained: Any) -> None:
    fields = {"strategy": "torch-mesh", "precision": "bf16", "device": "cuda-slice", "slices": 2}
    spread, single = (trained("transformer", **fields, layout=text) for text in (layout, "shard=1"))
    np.testing.assert_allclose(spread.losses, single.losses, rtol=PRECISIONS["bf16"])
