"""Every layout of jax-mesh trains as one worker does on the same global batch, and sends what its footprint says.

So do the other JAX strategies with several passes, clipped gradients and blocks computed again. With SGD and momentum,
because Adam hides a factor in the gradients.
"""

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from contract.conftest import WORKLOADS
from contract.hlo_bytes import carried
from contract.test_torch_mesh import CLIP, EVERYTHING, LOSS_TOLERANCE, TRAINING, assert_equal_training
from paceline.contract.context import spec_facts
from paceline.errors import SpecError
from paceline.layout import Layout
from paceline.plan import complete, refusal
from paceline.runs.probe import probe
from paceline.spec import ModelFile, RunSpec
from paceline.strategies import strategy
from paceline.systems import local_system

pytest.importorskip("jax", reason="JAX is not installed")
pytestmark = pytest.mark.jax

NAME = "jax-mesh"
# One block is enough to show what is split, sent and computed again, and compiles in half the time.
SMALL = {"options": {"depth": 1, "width": 32, "heads": 4}}


def spec_of(**fields: Any) -> RunSpec:
    asked = {**WORKLOADS["transformer"], **SMALL, "strategy": NAME, **TRAINING, **fields}
    return complete(RunSpec.parse(asked, "layout"))


def case(soak: bool = False, **fields: Any) -> Any:
    words = " ".join(str(value) if name in ("strategy", "layout") else f"{name} {value}"
                     for name, value in fields.items())  # fmt: skip
    return pytest.param(fields, id=words, marks=[pytest.mark.soak] * soak)


RUNS = [
    case(layout="shard=2,tensor=2", **EVERYTHING),
    case(layout="replicate=2,shard=2", soak=True, clip=CLIP),
    # Without clipping, which would hide a factor in all gradients.
    case(strategy="jax-data", workers=2, accumulation=4, recompute="selective"),
    case(layout="shard=2", soak=True),
    case(layout="tensor=2", soak=True),
    case(layout="replicate=2", soak=True, accumulation=2),
    case(layout="shard=2", soak=True, **EVERYTHING),
    case(layout="tensor=2", soak=True, **EVERYTHING),
    case(layout="tensor=4", soak=True, classes=33),
    case(layout="shard=2,tensor=2", soak=True),
    case(layout="replicate=2,tensor=2", soak=True, accumulation=2, recompute="selective"),
    case(layout="replicate=2,shard=2", soak=True, **EVERYTHING),
    case(layout="replicate=2,shard=2,tensor=2", soak=True, clip=CLIP),
    case(layout="replicate=2,shard=2,tensor=2", soak=True, **EVERYTHING),
    case(layout="shard=2,tensor=2", soak=True, **EVERYTHING, knobs={"processes": True}),
    case(layout="shard=2", soak=True, accumulation=2, knobs={"steps_per_execution": 2}),
    case(strategy="jax-single", soak=True, **EVERYTHING),
    case(strategy="jax-data", workers=2, soak=True, **EVERYTHING),
    case(strategy="jax-fsdp", workers=2, soak=True, **EVERYTHING),
    case(strategy="jax-tensor", workers=2, soak=True, **EVERYTHING),
    case(strategy="keras-model-parallel", workers=4, soak=True, accumulation=2, clip=CLIP),
]


@pytest.mark.parametrize("fields", RUNS)
def test_a_run_trains_as_one_worker_does(fields: dict[str, Any], trained: Any) -> None:
    spec = spec_of(**fields)
    assert refusal(spec, local_system(), probe) is None
    spread = trained.again(spec)
    assert_equal_training(spread, trained.again(strategy(NAME).testing.reference(spread.record.spec)))


@pytest.mark.soak
@pytest.mark.parametrize("layout", ["shard=2", "tensor=2", "shard=2,tensor=2"])
def test_a_convolutional_network_is_divided_too(layout: str, trained: Any) -> None:
    spread = trained("mnist-small", strategy=NAME, layout=layout, **TRAINING, accumulation=2)
    assert_equal_training(spread, trained.again(strategy(NAME).testing.reference(spread.record.spec)))


@pytest.mark.soak
@pytest.mark.parametrize("fields", [
    {"strategy": "jax-data", "workers": 2, "dataset_copies": 8, **EVERYTHING},
    {"strategy": "jax-fsdp", "workers": 2, "dataset_copies": 8, **EVERYTHING},
    {"layout": "shard=2,tensor=2", "dataset_copies": 8, **EVERYTHING},
], ids=["jax-data", "jax-fsdp", "jax-mesh"])  # fmt: skip
def test_an_instrumented_run_makes_the_same_passes(fields: dict[str, Any], trained: Any) -> None:
    noted, timed = (trained.again(spec_of(**fields, instrumented=instrumented)) for instrumented in (True, False))
    shared = min(len(noted.losses), len(timed.losses))
    assert shared > 0
    assert noted.losses[:shared] == pytest.approx(timed.losses[:shared], rel=LOSS_TOLERANCE)
    for part in noted.record.breakdown:
        assert part.communication > 0
        assert part.forward > 0
        assert part.backward > 0


@pytest.mark.soak
def test_a_wrong_factor_of_the_gradients_would_be_seen(trained: Any) -> None:
    """Gradients added up and not averaged, and a norm of one of two shards alone, are off by such factors."""
    usual, optimizer = {"strategy": "jax-single", **TRAINING, **SMALL}, TRAINING["optimizer"]
    right = trained("transformer", **usual, clip=CLIP)
    without_others = trained("transformer", **usual, clip=CLIP * 2**0.5)
    assert abs(right.losses[1] / without_others.losses[1] - 1) > 10 * LOSS_TOLERANCE
    plain = trained("transformer", **usual)
    added_up = trained("transformer", **{**usual, "optimizer": {**optimizer, "lr": 2 * optimizer["lr"]}})
    assert abs(plain.losses[1] / added_up.losses[1] - 1) > 10 * LOSS_TOLERANCE


def promised(spec: RunSpec) -> dict[str, float]:
    """Payload bytes of a step by kind, devices and how far they are apart."""
    payload: dict[str, float] = defaultdict(float)
    (group,) = strategy(spec.strategy).footprint(spec, spec_facts(spec)).groups
    for message in group.messages:
        payload[f"{message.kind} over {message.ranks} apart {message.apart}"] += message.payload_bytes * message.count
    return dict(payload)


SENT = [
    case(layout="shard=2,tensor=2", **EVERYTHING),
    case(layout="replicate=2,shard=2,tensor=2", soak=True, clip=CLIP),
    case(layout="shard=2", soak=True, accumulation=2),
    case(layout="tensor=2", soak=True, recompute="full"),
    case(layout="tensor=2", soak=True, recompute="selective"),
    case(layout="replicate=2,tensor=2", soak=True, accumulation=2),
    case(strategy="jax-data", workers=2, soak=True, accumulation=4),
    case(strategy="jax-fsdp", workers=2, soak=True, accumulation=2, clip=CLIP),
    case(strategy="jax-tensor", workers=2, soak=True, accumulation=2, recompute="full"),
]
# A loss, which a footprint does not count.
BESIDE_BYTES = 8


@pytest.mark.parametrize("fields", SENT)
def test_the_footprint_promises_what_the_program_sends(fields: dict[str, Any], look: Any) -> None:
    spec = spec_of(**fields)
    seen, expected = carried(look(spec)["program"]), promised(spec)
    assert {kind: size for kind, size in seen.items() if size > BESIDE_BYTES}.keys() == {
        kind for kind, size in expected.items() if size > BESIDE_BYTES
    }
    for kind, size in expected.items():
        assert seen[kind] == pytest.approx(size, abs=BESIDE_BYTES), kind


@pytest.mark.soak
def test_less_is_held_by_blocks_that_are_computed_again_and_in_several_passes(look: Any) -> None:
    deep = {"strategy": "jax-single", "workers": 1, "options": {"depth": 8, "width": 32, "heads": 4}}
    held = {
        words: look(spec_of(**deep, **fields))["temporary_bytes"]
        for words, fields in {
            "all": {}, "products": {"recompute": "selective"}, "inputs": {"recompute": "full"},
            "a quarter": {"accumulation": 4},
        }.items()
    }  # fmt: skip
    assert held["inputs"] < 0.8 * held["products"]
    assert held["products"] < 0.6 * held["all"]
    assert held["a quarter"] < 0.4 * held["all"]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"layout": "shard=2,pipeline=2"}, "jax-mesh has no pipeline and layout shard=2,pipeline=2 has pipeline=2"),
    ({"layout": "tensor=8"}, "4 heads cannot be split over tensor=8"),
    ({"layout": "tensor=3", "workload": "mnist-small", "options": {}, "input_shape": None, "classes": None},
     "nothing in mnist-small divides over tensor=3"),
    ({"layout": "shard=2", "accumulation": 3}, "a local batch of 8 does not divide into 3 micro-batches"),
    ({"layout": "shard=2", "optimizer": {"name": "lbfgs"}}, "L-BFGS is offered by torch-single"),
    ({"strategy": "jax-data", "layout": "shard=2"}, "jax-data divides a model in one way and takes no layout"),
    ({"strategy": "keras-model-parallel", "workers": 2, "recompute": "full"}, "keeps all activations"),
    ({"layout": "shard=2", "recompute": "full", "workload": "mnist-small", "options": {}, "input_shape": None,
      "classes": None}, "mnist-small has no transformer blocks"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_what_cannot_be_laid_out_is_refused_in_words(fields: dict[str, Any], words: str) -> None:
    assert words in str(refusal(spec_of(**fields), local_system(), probe))


def test_a_batch_that_does_not_divide_over_the_data_ranks_is_refused() -> None:
    with pytest.raises(SpecError, match="global_batch 16 does not divide over 3 workers"):
        refusal(spec_of(layout="shard=3"), local_system(), probe)


def test_a_pair_of_functions_needs_a_plan_to_be_split_and_cannot_be_computed_again(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("def build(): ...\ndef data(): ...\n")
    model = ModelFile.from_text(str(path))
    check = strategy(NAME).needs.check
    split, again = (
        RunSpec(strategy=NAME, model=model, global_batch=16, steps=1, **fields)
        for fields in ({"layout": Layout(tensor=2)}, {"layout": Layout(shard=2), "recompute": "full"})
    )
    assert "add a function plan to mine.py" in str(check(split, local_system()))
    assert "cannot see the layers of" in str(check(again, local_system()))
