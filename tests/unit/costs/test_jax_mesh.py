"""What devices of a JAX mesh compute, send and hold, in numbers that can be followed by hand."""

from typing import Any

import pytest

from paceline.contract.context import spec_facts
from paceline.costs.footprint import ModelFacts, RankFootprint
from paceline.costs.jax_mesh import why_not_on_mesh
from paceline.layout import Layout, all_layouts
from paceline.plan import complete
from paceline.spec import RunSpec
from paceline.strategies import strategy

WIDTH, LENGTH, VOCABULARY, BATCH = 16, 8, 32, 16
MODEL = {
    "workload": "transformer", "options": {"depth": 2, "width": WIDTH, "heads": 4}, "input_shape": [LENGTH],
    "classes": VOCABULARY, "global_batch": BATCH, "steps": 1, "optimizer": {"name": "sgd", "momentum": 0.9},
}  # fmt: skip
# Of one pass over the whole batch: what one sum of a block's output carries.
SUM_BYTES = BATCH * LENGTH * WIDTH * 4


def counted(name: str = "jax-mesh", **fields: Any) -> tuple[RankFootprint, ModelFacts]:
    spec = complete(RunSpec.parse({"strategy": name, **MODEL, **fields}, "mesh"))
    facts = spec_facts(spec)
    (group,) = strategy(name).footprint(spec, facts).groups
    return group, facts


@pytest.mark.parametrize("layout", [one.text for one in all_layouts(8) if one.tensor < 8 and one.pipeline == 1])
def test_all_devices_together_hold_each_parameter_once_per_copy_and_compute_a_step(layout: str) -> None:
    group, facts = counted(layout=layout)
    assert group.ranks == 8
    assert group.parameter_bytes * 8 >= facts.parameter_bytes * Layout.from_text(layout).replicate
    assert group.optimizer_bytes == group.parameter_bytes
    assert group.received_bytes == group.sent_bytes
    assert group.flops * 8 >= 3 * facts.forward_flops * BATCH


@pytest.mark.parametrize(("layout", "name"), [("replicate=4", "jax-data"), ("shard=4", "jax-fsdp"),
                                              ("tensor=4", "jax-tensor")])  # fmt: skip
def test_one_dimension_alone_is_the_strategy_that_has_only_it(layout: str, name: str) -> None:
    mesh, _ = counted(layout=layout)
    alone, _ = counted(name, workers=4)
    assert mesh == alone


def test_gradients_are_summed_once_over_copies_and_shards_together() -> None:
    group, facts = counted(layout="replicate=2,shard=2,tensor=2")
    (gradients,) = (message for message in group.messages if message.name == "gradients")
    assert (gradients.ranks, gradients.apart) == (4, 2)
    assert facts.parameter_bytes / 2 < gradients.payload_bytes < facts.parameter_bytes
    (gathered,) = (message for message in group.messages if message.name == "parameters")
    assert (gathered.ranks, gathered.apart) == (2, 2)


def test_a_block_that_is_computed_again_sums_its_first_half_again() -> None:
    sums = {
        kind: sum(message.payload_bytes * message.count for message in counted(layout="tensor=2", recompute=kind)[0]
                  .messages if message.layer is None and "block" in message.name)
        for kind in ("none", "selective", "full")
    }  # fmt: skip
    assert sums["none"] == sums["selective"] == 2 * 4 * SUM_BYTES
    assert sums["full"] == 2 * 5 * SUM_BYTES


def test_recomputing_holds_less_and_computes_more() -> None:
    kept, selective, again = (counted(layout="shard=2", recompute=kind)[0] for kind in ("none", "selective", "full"))
    assert kept.activation_bytes > selective.activation_bytes > again.activation_bytes
    # Attention alone: two products of the sequence with itself, in each of two blocks.
    attention = 2 * 4 * LENGTH * LENGTH * WIDTH * BATCH / 2
    assert selective.flops == kept.flops + attention
    assert selective.flops < again.flops < kept.flops * 4 / 3


def test_several_passes_hold_fewer_activations_and_two_sets_of_gradients_and_send_as_much() -> None:
    once, often = (counted("jax-data", workers=2, accumulation=passes)[0] for passes in (1, 4))
    assert often.activation_bytes == once.activation_bytes / 4
    assert often.gradient_bytes == 2 * once.gradient_bytes
    assert often.sent_bytes == once.sent_bytes
    split = [counted(layout="shard=2,tensor=2", accumulation=passes)[0].sent_bytes for passes in (1, 4)]
    assert split[0] == split[1]


def test_passes_of_keras_send_their_gradients_each() -> None:
    once, often = (counted("keras-model-parallel", workers=4, accumulation=passes)[0] for passes in (1, 4))
    gradients = [
        [message.count for message in group.messages if message.name == "gradients"] for group in (once, often)
    ]
    assert gradients == [[1], [4]]
    assert often.flops == once.flops


def test_passes_of_a_central_store_fetch_its_variables_each() -> None:
    spec = complete(RunSpec.parse({"strategy": "tf-central", "workers": 2, **MODEL, "accumulation": 4}, "central"))
    facts = spec_facts(spec)
    other = strategy("tf-central").footprint(spec, facts).groups[1]
    assert other.received_bytes == 4 * facts.parameter_bytes
    assert other.sent_bytes == facts.parameter_bytes


def test_a_norm_to_clip_by_is_a_sum_for_each_divided_array() -> None:
    plain, clipped = (counted(layout="shard=2,tensor=2", clip=clip)[0] for clip in (None, 1.0))
    more = [message for message in clipped.messages if message not in plain.messages]
    assert [(message.ranks, message.apart, message.phase) for message in more] == [(2, 1, "update"), (2, 2, "update")]
    assert all(0 < message.payload_bytes < 4 * 40 for message in more)
    assert counted("jax-data", workers=2, clip=1.0)[0] == counted("jax-data", workers=2)[0]


def test_sizes_that_do_not_divide_are_named() -> None:
    spec = complete(RunSpec.parse({"strategy": "jax-mesh", **MODEL, "layout": "tensor=4"}, "mesh"))
    facts = spec_facts(spec)
    odd = ModelFacts(
        tuple(
            layer if layer.heads is None else type(layer)(**{
                **vars(layer), "arrays": tuple((name, (WIDTH, 6) if name == "up_kernel" else shape)
                                               for name, shape in layer.arrays)})
            for layer in facts.layers
        ),
        facts.input_elements,
    )  # fmt: skip
    reason = why_not_on_mesh(spec, Layout(tensor=4), lambda _spec: odd)
    assert reason is not None
    assert "up_kernel of 1_block has a side of 6, which cannot be split over tensor=4" in reason
