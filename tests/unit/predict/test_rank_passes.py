"""A rank's own part of a model on a GPU: what it computes, what its host takes, what is sent beside."""

from typing import Any

import pytest

from paceline.contract.context import spec_facts
from paceline.costs.footprint import RankWork
from paceline.costs.fusion import unfused
from paceline.costs.operations import attention
from paceline.plan import complete
from paceline.predict.compute import Compute
from paceline.predict.prediction import Predictor
from paceline.predict.rank_passes import COMPILED_STEP_DEVIATION, COMPILED_STEP_SECONDS, RankClock
from paceline.spec import RunSpec
from paceline.strategies import strategies, strategy
from paceline.systems.files import load_hardware
from paceline.systems.hardware import Hardware, Quantity
from paceline.systems.software import LoggedBlock, Software

A100 = load_hardware("a100-nvlink")
MODEL = {
    "workload": "gpt", "options": {"depth": 8, "width": 2048, "heads": 16, "sequence": 1024}, "steps": 1,
    "device": "cuda", "precision": "bf16", "strategy": "torch-mesh", "global_batch": 32,
}  # fmt: skip


def spec_of(layout: str, **fields: Any) -> RunSpec:
    return complete(RunSpec.parse({**MODEL, "layout": layout, **fields}, "a rank"))


def step(spec: RunSpec, hardware: Hardware = A100) -> float:
    return Predictor(hardware, spec_facts(spec), 1).predict(spec).parts.step


def with_host(seconds: float, **software: Any) -> Hardware:
    asking = {"eager": Quantity(value=seconds, source="made up for a test")}
    device = A100.device.model_copy(update={"host_seconds_per_operation": asking})
    fitted = Software(source="made up for a test", **software)
    return A100.model_copy(update={"device": device, "software": fitted})


def passes(hardware: Hardware, **work: Any) -> Any:
    model = spec_facts(spec_of("replicate=1"))
    return RankClock(Compute(hardware, "torch", "bf16", casts=True)).passes(RankWork(model, 4.0, **work))


def test_a_device_that_is_fast_enough_waits_for_its_host() -> None:
    spec = spec_of("replicate=8")
    fast, slow, slower = (step(spec, with_host(seconds)) for seconds in (1e-9, 1e-3, 2e-3))
    assert slower == pytest.approx(2 * slow, rel=0.05)
    assert fast < slow / 3


def test_a_host_that_serves_split_layers_takes_longer_with_each_rank() -> None:
    alone, split = (passes(with_host(1e-5, host_share_per_split=0.05), ways=ways) for ways in (1, 5))
    assert sum(split.host_forward) == pytest.approx(1.2 * sum(alone.host_forward))


def test_a_host_that_waits_does_not_make_up_for_slow_layers_with_fast_ones() -> None:
    spec = spec_of("replicate=8")
    # As slow as the device on the whole: some layers wait for it, others it waits for.
    ahead, waiting = (step(spec, with_host(5e-5, host_wait_share=share)) for share in (0.0, 1.0))
    assert ahead < waiting < 1.5 * ahead
    staged = spec_of("pipeline=2,replicate=4", knobs={"microbatches": 4})
    ahead, waiting = (step(staged, with_host(5e-5, host_wait_share=share)) for share in (0.0, 1.0))
    assert ahead < waiting


def test_a_loss_takes_as_many_times_as_long_as_was_fitted() -> None:
    usual, slow = (passes(with_host(1e-9, loss_factor=factor)) for factor in (1.0, 3.0))
    assert slow.forward[:-1] == usual.forward[:-1]
    assert usual.forward[-1] < slow.forward[-1] < 3 * usual.forward[-1]


def test_a_logged_block_takes_its_factor_longer_and_others_stay() -> None:
    block = RankWork(spec_facts(spec_of("replicate=1")), 4.0).block
    assert block is not None and (block.width, block.heads, block.sequence, block.samples) == (2048, 16, 1024, 4)
    logged = (LoggedBlock(**block._asdict(), factor=1.5),)
    usual, longer = (passes(with_host(1e-5, blocks=blocks)) for blocks in ((), logged))
    assert longer.forward[1] == pytest.approx(1.5 * usual.forward[1])
    assert longer.host_forward[1] == pytest.approx(1.5 * usual.host_forward[1])
    assert longer.forward[0] == usual.forward[0]


def test_recomputed_blocks_make_the_backward_pass_longer_by_their_forward_pass_up_to_its_last_product() -> None:
    kept, again = (passes(A100, recompute=how) for how in ("none", "full"))
    blocks = sum(kept.forward[1:-2])
    # The last product is a third of all that a block of GPT-2 multiplies.
    assert 2 / 3 * blocks < again.backward_total - kept.backward_total < 0.8 * blocks
    assert again.forward == kept.forward


def test_the_last_stage_has_the_head_and_the_loss() -> None:
    spec = spec_of("pipeline=2", knobs={"balance": "blocks", "microbatches": 8})
    first, last = strategy("torch-mesh").footprint(spec, spec_facts(spec)).groups
    assert first.work is not None and last.work is not None
    assert (first.work.last, last.work.last) == (False, True)
    assert [sum(layer.heads is not None for layer in group.work.model.layers) for group in (first, last)] == [4, 4]
    clock = RankClock(Compute(A100, "torch", "bf16"))
    assert clock.passes(last.work).total > 1.1 * clock.passes(first.work).total


def test_scores_that_go_through_memory_take_longer_as_sequences_grow() -> None:
    one = attention("bf16", 2, (16, 16), (1024, 1024), 64, causal=True)
    kernels = unfused(one)
    assert [operation.kind for operation in kernels] == ["product", "memory", "memory", "product"]
    assert sum(operation.flops for operation in kernels if operation.kind == "product") == 2 * one.flops
    fused, through_memory = (passes(with_host(1e-9, attention=kind)).total for kind in ("fused", "unfused"))
    assert through_memory > 1.05 * fused


def test_gradients_that_nothing_hides_are_exposed_whole() -> None:
    spec = spec_of("replicate=8")
    hidden, shown = (
        Predictor(with_host(1e-9, hidden_share=share), spec_facts(spec), 1).predict(spec).parts for share in (1.0, 0.0)
    )
    assert shown.exposed == pytest.approx(shown.transfers)
    assert hidden.exposed < hidden.transfers / 2


def test_a_fitted_system_gives_the_deviation_of_its_fit() -> None:
    hardware = with_host(1e-5, deviation=0.1, several_nodes_deviation=0.2)
    facts = spec_facts(spec_of("replicate=8"))
    found = [
        Predictor(hardware, facts, 1).predict(spec_of(layout)).deviation for layout in ("replicate=8", "replicate=16")
    ]
    assert found == [0.1, 0.2]


def small_step(strategy_name: str, system: str = "h100-nvlink", batch: int = 512) -> Any:
    spec = complete(RunSpec.parse(
        {"workload": "mnist-small", "strategy": strategy_name, "local_batch": batch, "steps": 1, "device": "cuda",
         "precision": "bf16"}, "a small step"))  # fmt: skip
    return Predictor(load_hardware(system), spec_facts(spec), 1).predict(spec)


def test_a_step_that_is_one_program_is_started_once_and_not_operation_by_operation() -> None:
    whole, single = small_step("jax-single"), small_step("torch-single")
    assert whole.parts.step == pytest.approx(COMPILED_STEP_SECONDS)
    assert whole.parts.step < single.parts.step / 2
    # The host starts the next step while the device computes: what the device takes is hidden behind it.
    assert small_step("jax-single", batch=128).parts.step == pytest.approx(whole.parts.step)


@pytest.mark.parametrize("system", ["h100-nvlink", "h200-nvlink"])
@pytest.mark.parametrize("recorded", [716_475, 1_254_860])
def test_the_interval_of_a_small_step_in_jax_has_what_was_recorded(system: str, recorded: int) -> None:
    rate = small_step("jax-single", system).samples_per_second
    assert rate.low <= recorded <= rate.high


def test_a_device_that_computes_for_long_hides_what_starting_takes() -> None:
    long = small_step("jax-single", batch=262_144)
    assert long.parts.step > 10 * COMPILED_STEP_SECONDS
    assert long.deviation < COMPILED_STEP_DEVIATION


def test_a_tables_gradients_are_sent_once_and_not_with_every_micro_batch() -> None:
    knobs = {"microbatches": 16}
    tied, untied = (
        step(spec_of("pipeline=4", knobs=knobs, options={**MODEL["options"], "tied": tied})) for tied in (True, False)
    )
    spec = spec_of("pipeline=4", knobs=knobs)
    (sent,) = {
        message.payload_bytes
        for group in strategy("torch-mesh").footprint(spec, spec_facts(spec)).groups
        for message in group.messages
        if message.name == "gradients of the tied table"
    }
    # What the table takes over the link, and room for the head's own parameters.
    assert tied - untied < 2 * sent / A100.inner.bytes_per_second.value


@pytest.mark.parametrize("name", [one.name for one in strategies().values() if "accumulation" in one.needs.heeds])
def test_more_passes_are_of_fewer_samples_each_and_of_as_many_in_all(name: str) -> None:
    workers = 1 if name.endswith("-single") else 4
    spec = complete(RunSpec(workload="mlp", strategy=name, workers=workers, global_batch=256, steps=1, device="cpu"))
    once, often = (
        strategy(name).footprint(spec.model_copy(update={"accumulation": passes}), spec_facts(spec)).groups
        for passes in (1, 4)
    )
    for before, after in zip(once, often, strict=True):
        if before.work is not None and after.work is not None:
            assert after.work.samples * 4 == before.work.samples
