"""Runs that cannot fit in the memory are left out with the reason; what may fit never is."""

import pytest

from paceline.contract.user_model_facts import UserModelFacts
from paceline.plan import Plan, PlannedRun, complete
from paceline.runs.meters.room import free_bytes, least_bytes, least_gpu_bytes, leave_out_what_cannot_fit
from paceline.spec import RunSpec
from paceline.strategies import strategies
from paceline.systems import Gpu, local_system

GIGABYTE = 1e9


def no_probe(_spec: RunSpec) -> UserModelFacts:
    raise AssertionError("there is no model of a user's")


def spec(**fields: object) -> RunSpec:
    return complete(RunSpec.parse({"strategy": "torch-ddp", "global_batch": 64, "steps": 1, **fields}, "test"))


def plan(*specs: RunSpec) -> Plan:
    runs = tuple(PlannedRun(each, repeat) for each in specs for repeat in range(2))
    return Plan("study", runs, (), 0, tuple(each.key() for each in specs))


def test_a_model_of_billions_is_left_out_and_the_rest_of_the_study_goes_on() -> None:
    large, small = spec(workload="llama", options={"size": "8b"}), spec()
    left = leave_out_what_cannot_fit(plan(large, small), no_probe, 24 * GIGABYTE)
    assert [run.spec.key() for run in left.to_run] == [small.key()] * 2
    (skipped,) = left.skipped
    assert skipped.spec.key() == large.key()
    assert "it needs at least 3.06 TB of memory, and 24 GB are free on this machine" in str(skipped.skip_reason)
    assert "--force" in str(skipped.skip_reason)


def test_several_workers_need_the_memory_of_all_of_them() -> None:
    one, four = (least_bytes(spec(workers=workers), no_probe) for workers in (1, 4))
    assert 3.5 * one < four < 4.5 * one


def test_more_processes_than_a_machine_can_hold_are_left_out() -> None:
    many = spec(strategy="fake", workers=100_000, global_batch=100_000, dataset_copies=100)
    assert not leave_out_what_cannot_fit(plan(many), no_probe, 24 * GIGABYTE).to_run


def test_samples_that_fill_the_memory_count() -> None:
    assert least_bytes(spec(workload="mlp", input_shape=(3, 4000, 4000)), no_probe) > 100 * GIGABYTE


@pytest.mark.parametrize("name", [name for name, each in strategies().items() if "cpu" in each.needs.devices])
def test_a_small_model_fits_with_every_strategy(name: str) -> None:
    small = spec(strategy=name, workers=strategies()[name].needs.fixed_workers or 2)
    assert least_bytes(small, no_probe) < GIGABYTE
    assert leave_out_what_cannot_fit(plan(small), no_probe, 2 * GIGABYTE).skipped == ()


GPUS = (Gpu("a GPU of a test", 80 * 1024**3),)


@pytest.mark.parametrize(("device", "fields"), [("cuda", {}), ("cuda-slice", {"slices": 2, "workers": 2})])
def test_a_model_that_no_gpu_holds_is_left_out_before_it_starts(device: str, fields: dict[str, object]) -> None:
    large = spec(workload="llama", options={"size": "8b"}, device=device, **fields)
    left = leave_out_what_cannot_fit(plan(large, spec(device=device, **fields)), no_probe, 24 * GIGABYTE, GPUS)
    assert len(left.to_run) == 2
    (skipped,) = left.skipped
    assert "of a GPU's memory, and a GPU of a test has 85.9 GB; use a smaller batch" in str(skipped.skip_reason)
    assert "--force" in str(skipped.skip_reason)


def test_what_is_divided_over_gpus_or_waits_in_the_hosts_memory_may_fit() -> None:
    whole, shards, offloaded = (
        least_gpu_bytes(spec(workload="llama", options={"size": "8b"}, device="cuda", **fields), no_probe)
        for fields in ({}, {"strategy": "torch-fsdp", "workers": 8}, {"strategy": "torch-fsdp", "offload": True})
    )
    assert shards < whole / 4
    assert offloaded == 0.0


def test_what_is_free_is_a_part_of_the_machine() -> None:
    assert 0 < free_bytes() <= local_system().memory_bytes
