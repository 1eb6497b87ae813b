"""TensorFlow strategies with several passes, clipped gradients and blocks computed again train as one worker does."""

from typing import Any

import pytest

from contract.conftest import WORKLOADS
from contract.test_tf_placement import operations
from contract.test_torch_mesh import CLIP, EVERYTHING, TRAINING, assert_equal_training
from paceline.contract.strategy import on_one_worker
from paceline.plan import complete, refusal
from paceline.runs.probe import probe
from paceline.spec import RunSpec
from paceline.systems import local_system

pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
pytestmark = pytest.mark.tensorflow


def case(strategy: str, workers: int = 1, soak: bool = True, **fields: Any) -> Any:
    words = " ".join([strategy, *(f"{name} {value}" for name, value in fields.items())])
    marks = [pytest.mark.soak] * soak
    return pytest.param({"strategy": strategy, "workers": workers, **fields}, id=words, marks=marks)


RUNS = [
    case("tf-mirrored", 2, soak=False, **EVERYTHING),
    # Without clipping, which would hide a factor in all gradients.
    case("tf-mirrored", 2, soak=False, accumulation=4),
    case("tf-mirrored", 2, execution="compiled", **EVERYTHING),
    case("tf-mirrored", 2, recompute="full", knobs={"loop": "fit"}),
    case("tf-mirrored", 2, accumulation=2, knobs={"steps_per_execution": 2}),
    case("tf-single", **EVERYTHING),
    case("tf-multiworker", 2, **EVERYTHING),
    case("tf-central", 2, accumulation=2, clip=CLIP),
    case("tf-layers", 2, soak=False, **EVERYTHING),
    case("tf-layers", 2, accumulation=2, knobs={"microbatches": 2}),
    case("tf-dtensor", 2, soak=False, accumulation=2, clip=CLIP),
    case("tf-dtensor", 2, accumulation=2, clip=CLIP, knobs={"tensor": 2}),
    # One worker of a parameter server is never stale.
    case("tf-ps", 1, soak=False, accumulation=2, clip=CLIP, knobs={"ahead": 1}),
]


@pytest.mark.parametrize("fields", RUNS)
def test_a_run_trains_as_one_worker_does(fields: dict[str, Any], trained: Any) -> None:
    spread = trained("transformer", **TRAINING, **fields)
    assert_equal_training(spread, trained.again(on_one_worker("tf-single")(spread.record.spec)))


@pytest.mark.soak
@pytest.mark.parametrize("workload", ["mnist-small", "transformer"])
def test_stages_in_half_precision_train_as_the_whole_model_does(workload: str, trained: Any) -> None:
    staged, whole, single = (
        trained(workload, **TRAINING, strategy=name, workers=workers, precision=precision)
        for name, workers, precision in (("tf-layers", 2, "bf16"), ("tf-single", 1, "bf16"), ("tf-single", 1, "fp32"))
    )
    assert_equal_training(staged, whole)
    assert staged.losses != pytest.approx(single.losses, rel=1e-5)


@pytest.mark.soak
def test_an_instrumented_run_makes_the_same_passes(trained: Any) -> None:
    fields = {"strategy": "tf-mirrored", "workers": 2, **TRAINING, **EVERYTHING, "dataset_copies": 8}
    noted, timed = (trained("transformer", **fields, instrumented=instrumented) for instrumented in (True, False))
    shared = min(len(noted.losses), len(timed.losses))
    assert shared > 0
    assert noted.losses[:shared] == pytest.approx(timed.losses[:shared], rel=1e-4)


@pytest.mark.soak
def test_a_block_that_is_computed_again_has_its_operations_twice(interpreters: Any) -> None:
    workload = {**WORKLOADS["transformer"], "steps": 1}
    # Of the approximate GELU, once in each block.
    tangents = {
        kind: sum(ops.get("Tanh", 0) for ops in
                  operations("tf-single", 1, interpreters["tensorflow"].python, **workload, recompute=kind).values())
        for kind in ("none", "full")
    }  # fmt: skip
    assert tangents == {"none": 2, "full": 4}


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"recompute": "selective"}, "computes blocks again as a whole (tf.recompute_grad)"),
    ({"strategy": "tf-mirrored", "workers": 2, "accumulation": 2, "knobs": {"loop": "fit"}}, "nothing of accumulation"),
    ({"strategy": "tf-mirrored", "workers": 2, "clip": 1.0, "knobs": {"loop": "fit"}}, "knows nothing of clip"),
    ({"strategy": "tf-mirrored", "workers": 2, "accumulation": 3}, "does not divide into 3 micro-batches"),
    ({"strategy": "tf-central", "workers": 2, "recompute": "full"}, "tf-central keeps all activations"),
    ({"strategy": "tf-dtensor", "workers": 2, "recompute": "full"}, "tf-dtensor keeps all activations"),
    ({"strategy": "tf-ps", "workers": 2, "recompute": "full"}, "tf-ps keeps all activations"),
    ({"strategy": "tf-layers", "workers": 2, "accumulation": 3}, "does not divide into 3 micro-batches"),
    ({"workload": "mnist-small", "options": {}, "input_shape": None, "classes": None, "recompute": "full"},
     "mnist-small has no transformer blocks"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_what_tensorflow_cannot_do_is_refused_in_words(fields: dict[str, Any], words: str) -> None:
    asked = {**WORKLOADS["transformer"], **TRAINING, "strategy": "tf-single", **fields}
    assert words in str(refusal(complete(RunSpec.parse(asked, "refused")), local_system(), probe))
