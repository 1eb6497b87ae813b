"""Facts of a layer: its kind and how it can be split, declared by the layer or derived from its arrays."""

import json
from dataclasses import asdict, replace

import pytest

from paceline.contract.context import spec_facts
from paceline.costs.layers import CONVOLUTION_SPLITS, DENSE_SPLITS, LayerFacts, kind_of_arrays
from paceline.plan import complete
from paceline.spec import RunSpec
from paceline.workloads import workloads

ARRAYS = {
    "convolution": (("kernel", (3, 3, 1, 8)),),
    "attention": (("qkv_kernel", (8, 24)),),
    "dense": (("kernel", (8, 8)),),
    "other": (("scale", (8,)),),
    "shape": (),
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_a_kind_that_is_not_declared_follows_from_the_arrays(kind: str) -> None:
    assert kind_of_arrays(ARRAYS[kind]) == kind
    assert LayerFacts("x", 1, 1, 1, arrays=ARRAYS[kind]).kind == kind


def test_a_declared_kind_counts_whatever_the_arrays_are_called() -> None:
    assert LayerFacts("x", 1, 1, 1, arrays=(("weight", (8, 8)),), kind="other").kind == "other"


def test_splits_that_are_not_declared_are_those_usual_for_the_kind() -> None:
    assert LayerFacts("x", 1, 1, 1, arrays=ARRAYS["dense"]).splits == DENSE_SPLITS
    assert LayerFacts("x", 1, 1, 1, arrays=ARRAYS["convolution"]).splits == CONVOLUTION_SPLITS
    assert LayerFacts("x", 1, 1, 1, arrays=ARRAYS["other"]).splits == {}
    # Only a kernel has rows and columns that are known to be inputs and outputs.
    assert LayerFacts("x", 1, 1, 1, arrays=(("weight", (8, 8)),)).splits == {}


@pytest.mark.parametrize("workload", sorted(workloads()))
def test_what_built_in_layers_declare_is_what_their_arrays_suggest(workload: str) -> None:
    for layer in spec_facts(complete(RunSpec(workload=workload, global_batch=8, steps=1))).layers:
        # A tied head has no array of its own to tell.
        assert layer.tied or layer.kind == kind_of_arrays(layer.arrays)
        assert {array for split in layer.splits.values() for array in split} <= set(dict(layer.arrays))


def test_facts_survive_the_way_between_processes() -> None:
    layers = spec_facts(complete(RunSpec(workload="transformer", global_batch=8, steps=1))).layers
    back = tuple(LayerFacts.from_json(json.loads(json.dumps(asdict(layer)))) for layer in layers)
    assert back == layers
    assert [layer.splits for layer in back] == [layer.splits for layer in layers]


def test_a_part_of_a_layer_is_of_the_same_kind() -> None:
    layer = LayerFacts("x", 1, 1, 1, arrays=ARRAYS["convolution"])
    assert replace(layer, arrays=()).kind == "convolution"
