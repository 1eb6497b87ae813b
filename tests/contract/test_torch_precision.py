"""Numbers of two bytes: every way to divide a model trains as one worker does that makes the same passes.

With SGD, because Adam hides a factor in the gradients.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contract.conftest import WORKLOADS
from paceline.contract.context import spec_facts
from paceline.plan import complete, refusal
from paceline.runs.probe import probe
from paceline.spec import RunSpec
from paceline.strategies import strategy
from paceline.systems import local_system

pytestmark = pytest.mark.torch
pytest.importorskip("torch", reason="PyTorch is not installed")

TRAINING: dict[str, Any] = {"steps": 4, "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9}}
# The same passes in the same precision give the same numbers; sums in another order do not.
SAME_PASSES, OTHER_SUMS = 1e-6, 5e-3
# In pure bf16 a parameter keeps 3 digits, and an update smaller than that is lost.
PURE = 5e-2


def run(trained: Any, workload: str = "transformer", **fields: Any) -> Any:
    return trained(workload, **{**TRAINING, **fields})


def test_the_precision_is_felt(trained: Any) -> None:
    exact, *others = (run(trained, strategy="torch-single", precision=kind) for kind in ("fp32", "bf16", "fp16"))
    for other in others:
        assert 0 < np.abs(other.losses / exact.losses - 1).max() < OTHER_SUMS


@pytest.mark.parametrize(("fields", "passes"), [
    ({"layout": "shard=2"}, 2),
    ({"layout": "pipeline=2"}, 4),
    pytest.param({"layout": "replicate=2", "reduction": "fp32"}, 2, marks=pytest.mark.soak),
    pytest.param({"layout": "shard=2,pipeline=2"}, 8, marks=pytest.mark.soak),
    pytest.param({"layout": "shard=2", "recompute": "full", "accumulation": 2}, 4, marks=pytest.mark.soak),
], ids=str)  # fmt: skip
def test_a_mesh_in_bf16_trains_as_one_worker_that_makes_the_same_passes(
    fields: dict[str, Any], passes: int, trained: Any
) -> None:
    half = {"strategy": "torch-mesh", "precision": "bf16"}
    spread = run(trained, **half, **fields)
    single = run(trained, **half, layout="shard=1", accumulation=passes)
    np.testing.assert_allclose(spread.losses, single.losses, rtol=SAME_PASSES)
    for name, array in single.weights.items():
        np.testing.assert_allclose(spread.weights[name], array, atol=SAME_PASSES, err_msg=name)


@pytest.mark.parametrize("fields", [
    {"strategy": "torch-mesh", "layout": "tensor=2"},
    {"strategy": "torch-fsdp"},
    {"strategy": "torch-tensor"},
    {"strategy": "torch-pipeline"},
    {"strategy": "torch-ps-sync"},
    pytest.param({"strategy": "torch-mesh", "layout": "shard=2,tensor=2"}, marks=pytest.mark.soak),
    # PyTorch adds up the micro-batches of a backward pass in two parts in bf16.
    pytest.param(
        {"strategy": "torch-mesh", "layout": "pipeline=2", "knobs": {"schedule": "zbv"}}, marks=pytest.mark.soak
    ),
    pytest.param({"strategy": "torch-layers"}, marks=pytest.mark.soak),
    pytest.param(
        {"strategy": "torch-mesh", "layout": "replicate=2,pipeline=2", "reduction": "bf16"}, marks=pytest.mark.soak
    ),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("workload", ["transformer", pytest.param("mnist-small", marks=pytest.mark.soak)])
def test_parts_of_a_model_in_bf16_stay_near_one_worker(workload: str, fields: dict[str, Any], trained: Any) -> None:
    workers = {} if "layout" in fields else {"workers": 2}
    spread = run(trained, workload, precision="bf16", **{**workers, **fields})
    single = run(trained, workload, strategy="torch-single", precision="bf16")
    np.testing.assert_allclose(spread.losses, single.losses, rtol=OTHER_SUMS)


@pytest.mark.parametrize("fields", [
    {"strategy": "torch-mesh", "layout": "shard=2", "clip": 0.2},
    {"strategy": "torch-pipeline"},
    {"strategy": "torch-ps-sync", "accumulation": 2},
    pytest.param({"strategy": "torch-mesh", "layout": "pipeline=2"}, marks=pytest.mark.soak),
    pytest.param({"strategy": "torch-mesh", "layout": "tensor=2"}, marks=pytest.mark.soak),
    pytest.param({"strategy": "torch-ddp", "clip": 0.2}, marks=pytest.mark.soak),
    pytest.param({"strategy": "torch-fsdp"}, marks=pytest.mark.soak),
    pytest.param({"strategy": "torch-zero"}, marks=pytest.mark.soak),
    pytest.param({"strategy": "torch-layers"}, marks=pytest.mark.soak),
    pytest.param({"strategy": "torch-tensor"}, marks=pytest.mark.soak),
], ids=str)  # fmt: skip
def test_a_scaled_loss_in_fp16_trains_as_one_that_is_not_scaled(fields: dict[str, Any], trained: Any) -> None:
    workers = {} if "layout" in fields else {"workers": 2}
    spread = run(trained, precision="fp16", **{**workers, **fields})
    single = run(trained, strategy="torch-single", clip=fields.get("clip"))
    np.testing.assert_allclose(spread.losses, single.losses, rtol=OTHER_SUMS)
    assert {rank.details["skipped_steps"] for rank in spread.record.ranks if rank.role == "worker"} == {0}


@pytest.mark.parametrize("fields", [
    {"strategy": "torch-single", "workers": 1},
    {"strategy": "torch-mesh", "layout": "shard=2"},
    {"strategy": "torch-ps-sync", "knobs": {"servers": 2}},
    pytest.param({"strategy": "torch-mesh", "layout": "tensor=2", "clip": 10.0}, marks=pytest.mark.soak),
    pytest.param({"strategy": "torch-mesh", "layout": "pipeline=2"}, marks=pytest.mark.soak),
    pytest.param({"strategy": "torch-ddp", "reduction": "fp32"}, marks=pytest.mark.soak),
    pytest.param({"strategy": "torch-zero"}, marks=pytest.mark.soak),
    pytest.param({"strategy": "torch-fsdp", "reduction": "fp32"}, marks=pytest.mark.soak),
    pytest.param({"strategy": "torch-pipeline"}, marks=pytest.mark.soak),
    pytest.param({"strategy": "torch-tensor"}, marks=pytest.mark.soak),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("workload", ["transformer", pytest.param("mnist-small", marks=pytest.mark.soak)])
def test_everything_in_bf16_trains_about_alike_and_holds_half(
    workload: str, fields: dict[str, Any], trained: Any
) -> None:
    workers = {} if "layout" in fields else {"workers": 2}
    pure = {"precision": "bf16-pure", "optimizer": {"name": "adam"}}
    spread = run(trained, workload, **pure, **{**workers, **fields})
    single = run(trained, workload, strategy="torch-single", optimizer={"name": "adam"})
    np.testing.assert_allclose(spread.losses, single.losses, rtol=PURE)
    spec = spread.record.spec
    groups = strategy(spec.strategy).footprint(spec, spec_facts(spec)).groups
    promised = [(group.parameter_bytes, group.optimizer_bytes) for group in groups for _ in range(group.ranks)]
    held = [rank.details["held_bytes"] for rank in spread.record.ranks]
    assert [(part["parameters"], part["optimizer"]) for part in held] == promised


@pytest.mark.parametrize("name", ["torch-ddp", pytest.param("torch-fsdp", marks=pytest.mark.soak)])
def test_gradients_added_up_in_bf16_are_rounded_and_no_more(name: str, trained: Any) -> None:
    usual, rounded, whole = (
        run(trained, strategy=name, workers=2, precision="bf16", reduction=kind) for kind in (None, "bf16", "fp32")
    )
    np.testing.assert_array_equal(whole.losses, usual.losses)
    assert (rounded.losses[1:] != usual.losses[1:]).any()
    np.testing.assert_allclose(rounded.losses, usual.losses, rtol=OTHER_SUMS)


@pytest.mark.soak
@pytest.mark.parametrize("fields", [
    {"strategy": "torch-fsdp", "workers": 2},
    {"strategy": "torch-fsdp", "workers": 2, "precision": "bf16"},
    {"strategy": "torch-mesh", "layout": "shard=2", "accumulation": 2, "clip": 0.2},
    {"strategy": "torch-mesh", "layout": "pipeline=2", "knobs": {"schedule": "zbv"}},
    {"strategy": "torch-mesh", "layout": "shard=2,pipeline=2"},
], ids=str)  # fmt: skip
def test_blocks_compiled_one_by_one_train_as_they_do_eagerly(fields: dict[str, Any], trained: Any) -> None:
    compiled, eager = (run(trained, **fields, execution=execution) for execution in ("compiled", "eager"))
    tolerance = OTHER_SUMS if "precision" in fields else 1e-4
    np.testing.assert_allclose(compiled.losses, eager.losses, rtol=tolerance)
    for name, array in eager.weights.items():
        np.testing.assert_allclose(compiled.weights[name], array, atol=tolerance, err_msg=name)


@pytest.mark.timeout(120)
def test_a_step_that_overflows_on_one_rank_is_skipped_by_all() -> None:
    script = Path(__file__).parent / "overflow.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    asked = json.loads(done.stdout)
    # A step, one in which the second rank's gradient is infinite, and one after it.
    assert [rank["made"] for rank in asked] == [[True, False, True]] * 2
    assert [rank["factors"] for rank in asked] == [[65536.0, 32768.0, 32768.0]] * 2
    assert [rank["gradients"] for rank in asked] == [[1.0, None, 1.0]] * 2


def test_what_fully_shard_is_told() -> None:
    import torch
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy

    from paceline.frameworks.torch.sharded import sharding_policies

    def told(gives_results: bool = False, **fields: Any) -> dict[str, Any]:
        usual = {"strategy": "torch-fsdp", "workers": 2, "global_batch": 16, "steps": 1}
        return sharding_policies(RunSpec.parse({**usual, **fields}, "policies"), gives_results)

    half, whole = torch.bfloat16, torch.float32
    assert told() == told(precision="tf32") == {}
    assert told(precision="bf16") == {"mp_policy": MixedPrecisionPolicy(half, whole)}
    assert told(True, precision="bf16", reduction="bf16") == {"mp_policy": MixedPrecisionPolicy(half, half, whole)}
    assert told(precision="fp16") == {"mp_policy": MixedPrecisionPolicy(torch.float16, whole)}
    assert told(precision="bf16-pure") == {"mp_policy": MixedPrecisionPolicy(half, half)}
    assert told(True, reduction="bf16") == {"mp_policy": MixedPrecisionPolicy(None, half, None)}
    assert told(offload=True, device="cuda") == {"offload_policy": CPUOffloadPolicy(pin_memory=True)}


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"strategy": "torch-mesh", "layout": "shard=2", "offload": True}, "where device cpu has it; leave it out"),
    ({"strategy": "torch-fsdp", "offload": True}, "where device cpu has it; leave it out"),
    ({"strategy": "torch-ddp", "offload": True}, "keeps what it trains where it computes"),
    ({"strategy": "torch-zero", "reduction": "bf16"}, "has no choice in which precision gradients are added up"),
    ({"strategy": "jax-data", "reduction": "bf16"}, "has no choice in which precision gradients are added up"),
    ({"strategy": "jax-data", "precision": "fp16"}, "jax-data does not run with precision fp16"),
    ({"strategy": "tf-mirrored", "precision": "bf16-pure"}, "tf-mirrored does not run with precision bf16-pure"),
    ({"strategy": "torch-sandblaster", "precision": "fp16"}, "torch-sandblaster does not run with precision fp16"),
    (
        {"strategy": "torch-single", "workers": 1, "precision": "fp16", "optimizer": {"name": "lbfgs"}},
        "may skip a step",
    ),
    ({"strategy": "torch-ddp", "reduction": "bf16", "knobs": {"compression": "bf16"}}, "leave one of them out"),
    ({"strategy": "torch-tensor", "execution": "compiled"}, "torch-tensor does not run with execution compiled"),
]


@pytest.mark.parametrize(("fields", "words"), REFUSED, ids=[str(fields) for fields, _ in REFUSED])
def test_what_cannot_be_is_refused_in_words(fields: dict[str, Any], words: str) -> None:
    workers = {} if "layout" in fields else {"workers": 2}
    spec = complete(RunSpec.parse({**WORKLOADS["transformer"], "steps": 1, **workers, **fields}, "refused"))
    reason = str(refusal(spec, local_system(), probe))
    if "is not installed" in reason:
        pytest.skip(reason)
    assert words in reason
