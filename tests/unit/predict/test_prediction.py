"""Predictions of whole runs: parts that add up, limits that hold, and what the user's own numbers change."""

import pytest

from paceline.contract.context import spec_facts
from paceline.plan import complete
from paceline.predict.compute import model_digest
from paceline.predict.estimate import Estimate
from paceline.predict.prediction import Predictor, transport_of
from paceline.predict.question import Question
from paceline.spec import RunSpec
from paceline.strategies import strategies, strategy
from paceline.systems.files import load_hardware
from paceline.systems.hardware import Calibration, Curve, Hardware, Quantity, StepCurve

REAL = [one.name for one in strategies().values() if one.family != "fake"]


def spec_of(name: str, workers: int, **fields: object) -> RunSpec:
    values = {"workload": "transformer", "strategy": name, "workers": workers, "global_batch": 64, "steps": 1,
              "device": "cuda", "input_shape": (64,), "classes": 256, **fields}  # fmt: skip
    return complete(RunSpec.model_validate(values))


def predictor(hardware: Hardware) -> Predictor:
    return Predictor(hardware, spec_facts(spec_of("torch-single", 1)), 1000)


@pytest.mark.parametrize("name", REAL)
def test_every_strategy_of_the_catalogue_is_predicted_and_its_parts_are_its_step(name: str) -> None:
    workers = strategy(name).needs.fixed_workers or 4
    found = predictor(load_hardware("4xa100-nvlink")).predict(spec_of(name, workers))
    parts = found.parts
    assert min(parts.compute, parts.exposed, parts.bubble, parts.waiting, parts.transfers) >= 0
    assert parts.compute + parts.exposed + parts.bubble + parts.waiting == pytest.approx(found.step_seconds.value)
    assert found.step_seconds.low < found.step_seconds.value < found.step_seconds.high
    assert found.memory_bytes.value > 0


def test_one_worker_of_data_parallelism_is_as_fast_as_none() -> None:
    found = predictor(load_hardware("4xa100-nvlink"))
    one, single = found.predict(spec_of("torch-ddp", 1)), found.predict(spec_of("torch-single", 1))
    assert one.parts.step == pytest.approx(single.parts.step)
    assert one.efficiency == pytest.approx(1)


def test_a_slower_network_makes_more_of_the_step_communication() -> None:
    slow, fast = (
        predictor(load_hardware("4xa100-nvlink", network)).predict(spec_of("torch-ddp", 16))
        for network in ("1g", "400g")
    )
    assert slow.parts.exposed > 10 * fast.parts.exposed
    assert slow.parts.compute == fast.parts.compute


def test_identical_ranks_cost_as_much_to_predict_as_one() -> None:
    huge = spec_of("torch-ddp", 100_000, global_batch=None, local_batch=4)
    found = predictor(load_hardware("8xh100-nvlink")).predict(huge)
    assert found.parts.step > 0
    assert len(strategy("torch-ddp").footprint(huge, spec_facts(huge)).groups) == 1


def test_the_step_waits_for_the_slowest_of_unlike_devices_and_servers_do_not() -> None:
    alike = load_hardware("4xa100-nvlink")
    unlike = alike.model_copy(update={"speeds": (1.0, 0.5)})
    for name, least in (("torch-ddp", 1.9), ("torch-downpour", 1.0)):
        steps = [predictor(one).predict(spec_of(name, 2)).parts.step for one in (alike, unlike)]
        assert steps[1] / steps[0] == pytest.approx(least, abs=0.55)
    waiting = predictor(unlike).predict(spec_of("torch-ddp", 2)).parts.waiting
    assert waiting > predictor(alike).predict(spec_of("torch-ddp", 2)).parts.waiting


@pytest.mark.parametrize("name", ["torch-ps-sync", "torch-downpour", "torch-sandblaster"])
def test_workers_with_servers_compute_as_long_as_others_on_as_many_samples(name: str) -> None:
    fields = {"workload": "gpt", "global_batch": 448, "input_shape": None, "classes": None}
    found = [
        Predictor(load_hardware("a100-nvlink"), spec_facts(spec), 1000).predict(spec)
        for spec in (spec_of(each, 7, **fields) for each in (name, "torch-ddp"))
    ]
    assert found[0].parts.compute == pytest.approx(found[1].parts.compute, rel=0.05)
    assert 0 < found[0].utilisation < found[1].utilisation * 1.05
    # Servers are not the memory of the host.
    assert found[0].parts.offloaded == 0 and found[0].parts.cpu_seconds > 0


def test_a_model_that_is_too_large_does_not_fit() -> None:
    small = load_hardware("k80-n1-highmem-2")
    question = Question(hardware=small, workload="transformer", options={"depth": 48, "width": 2048}, workers=(1,))
    (spec,) = question.specs("torch-single")
    found = question.predictor.predict(spec)
    assert not found.fits
    assert found.memory_bytes.value > found.memory_limit_bytes == 12e9


def test_sharding_holds_less_and_sends_more_than_data_parallelism() -> None:
    found = predictor(load_hardware("8xh100-nvlink"))
    whole, sharded = (found.predict(spec_of(name, 8)) for name in ("torch-ddp", "torch-fsdp"))
    assert sharded.memory_bytes.value < whole.memory_bytes.value
    assert sharded.parts.transfers > whole.parts.transfers


def test_gathering_and_scattering_hide_behind_layers_that_take_longer() -> None:
    found = predictor(load_hardware("8xh100-nvlink", "400g")).predict(spec_of("torch-fsdp", 8, global_batch=65536))
    assert found.parts.transfers > 4 * found.parts.exposed


def test_more_microbatches_leave_stages_idle_for_less_of_the_time() -> None:
    found = predictor(load_hardware("4xa100-nvlink"))
    few, many = (
        found.predict(spec_of("torch-pipeline", 4, knobs={"microbatches": count}, global_batch=512)).parts
        for count in (4, 16)
    )
    assert many.bubble / many.step < few.bubble / few.step


def test_a_measured_step_is_predicted_as_it_was_measured() -> None:
    facts = spec_facts(spec_of("torch-single", 1))
    curve = StepCurve(
        framework="torch", model="transformer", digest=model_digest(facts), precision="fp32",
        seconds=Curve.through([16.0, 64.0, 256.0], [0.1, 0.3, 1.1]),
    )  # fmt: skip
    calibration = Calibration(at="2020-01-01", machine="a machine", frameworks={}, steps=(curve,))
    known = load_hardware("cpu-2-cores").model_copy(update={"calibration": calibration, "name": "local"})
    spec = spec_of("torch-single", 1, device="cpu")
    found = Predictor(known, facts, 1000).predict(spec)
    assert found.parts.step == pytest.approx(0.3)
    assert found.source == "steps of this model, measured here"


def test_a_machine_of_the_same_class_is_foreseen_less_surely_than_this_one() -> None:
    facts = spec_facts(spec_of("torch-single", 1))
    found = Calibration(at="2020-01-01", machine="a machine", frameworks={}, repeat_deviation=0.02, steps=(StepCurve(
        framework="torch", model="transformer", digest=model_digest(facts), precision="fp32",
        seconds=Curve.through([16.0, 64.0, 256.0], [0.1, 0.3, 1.1])),))  # fmt: skip
    there = load_hardware("cpu-2-cores").model_copy(update={"calibration": found})
    here = there.model_copy(update={"name": "local"})
    sure, unsure = (
        Predictor(one, facts, 1000).predict(spec_of("torch-single", 1, device="cpu")) for one in (here, there)
    )
    assert sure.deviation < 0.1 < unsure.deviation
    assert unsure.source == "steps of this model, measured on such a machine"


def test_more_workers_than_cores_share_them() -> None:
    machine = load_hardware("cpu-2-cores")
    two, four = (predictor(machine).predict(spec_of("torch-ddp", workers, device="cpu")) for workers in (2, 4))
    assert four.parts.step >= 0.95 * two.parts.step


def test_costs_are_devices_by_the_hour() -> None:
    hardware = load_hardware("4xa100-nvlink")
    facts = spec_facts(spec_of("torch-single", 1))
    found = Predictor(hardware, facts, 64, price_per_device_hour=3600.0).predict(spec_of("torch-ddp", 2))
    assert found.cost_per_epoch is not None
    assert found.cost_per_epoch.value == pytest.approx(2 * found.parts.step)
    assert predictor(hardware).predict(spec_of("torch-ddp", 2)).cost_per_epoch is None


def test_what_carries_messages_follows_from_processes_and_device() -> None:
    by = {name: transport_of(strategy(name), spec_of(name, 2, device="cpu"))
          for name in ("torch-ddp", "tf-mirrored", "tf-multiworker", "jax-data")}  # fmt: skip
    assert by == {"torch-ddp": "gloo", "tf-mirrored": "memory", "tf-multiworker": "grpc", "jax-data": "memory"}
    assert transport_of(strategy("torch-ddp"), spec_of("torch-ddp", 2)) == "nccl"


def test_an_interval_is_as_wide_below_as_above_in_ratio() -> None:
    found = Estimate.around(100.0, 0.1)
    assert found.high / found.value == pytest.approx(found.value / found.low) == pytest.approx(1.1788, rel=1e-3)
    turned = found.inverted(1000.0)
    assert turned.low < turned.value == 10 < turned.high


def test_energy_counts_idle_time_at_idle_power() -> None:
    hardware = load_hardware("4xa100-nvlink")
    idle = Quantity(value=0.0, source="made up for a test")
    quiet = hardware.model_copy(update={"device": hardware.device.model_copy(update={"idle_watts": idle})})
    spec = spec_of("torch-layers", 4)
    thrifty, plain = (predictor(one).predict(spec) for one in (quiet, hardware))
    assert thrifty.joules_per_step < plain.joules_per_step
