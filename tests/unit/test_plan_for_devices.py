"""What GPUs, their slices and versions of frameworks mean for a plan: a reason to skip, or none."""

from dataclasses import replace

import pytest

from paceline.plan import complete, refusal


def no_probe(_spec):
    raise AssertionError("a built-in model needs no probe")


def test_slices_need_what_cuts_a_gpu(make_spec, make_system):
    spec = complete(make_spec(strategy="torch-ddp", workers=2, device="cuda-slice", slices=2))
    lacking = replace(make_system(gpus=1), no_slices="nvidia-cuda-mps-control is not on the path")
    assert refusal(spec, lacking, no_probe) == "nvidia-cuda-mps-control is not on the path"
    assert refusal(spec, make_system(gpus=1), no_probe) is None


def test_more_workers_than_slices_are_refused(make_spec, make_system):
    spec = complete(make_spec(strategy="torch-ddp", workers=4, device="cuda-slice", slices=2))
    assert refusal(spec, make_system(gpus=1), no_probe) == (
        "4 workers need as many slices and the GPU is cut into 2; use --slices 4"
    )


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"device": "cpu"}, "execution graph of torch-single records CUDA graphs on a GPU; use eager or compiled"),
        (
            {"device": "cuda", "optimizer": {"name": "adagrad"}},
            "execution graph goes with adam, adamw and sgd; adagrad asks the host in every step",
        ),
        (
            {"device": "cuda", "strategy": "torch-ddp", "knobs": {"compression": "fp16"}},
            "execution graph cannot record gradients that are cast or compressed; use execution eager",
        ),
    ],
)
def test_what_a_recorded_step_cannot_have_is_refused(make_spec, make_system, fields, reason):
    spec = complete(make_spec(**{"strategy": "torch-single", "workers": 1, "execution": "graph", **fields}))
    assert refusal(spec, make_system(gpus=1), no_probe) == reason


@pytest.mark.parametrize(("version", "refused"), [("2.6.0+cu124", True), ("2.7.0", False), ("2.13.0+cpu", False)])
def test_sharding_on_cpu_needs_a_pytorch_that_has_it(make_spec, make_system, version, refused):
    system = replace(make_system(), frameworks={"torch": version})
    found = refusal(complete(make_spec(strategy="torch-fsdp", workers=2, global_batch=256)), system, no_probe)
    assert (found is not None) is refused
    if refused:
        assert found == (
            "torch-fsdp on CPU needs PyTorch 2.7 or newer and this is 2.6.0+cu124; upgrade it, or use torch-zero"
        )


@pytest.mark.parametrize("name", ["tf-mirrored", "tf-central", "tf-layers", "tf-dtensor", "keras-model-parallel"])
def test_workers_of_one_process_cannot_be_on_several_machines(make_spec, make_system, name):
    system = make_system(frameworks=("tensorflow", "keras", "jax"))
    spec = complete(make_spec(strategy=name, workers=2, machines="left,right"))
    reason = refusal(spec, system, no_probe)
    assert reason == (
        f"{name} has all its workers in one process, which cannot be on several machines (left,right); "
        "name one machine with --on"
    )
    assert refusal(complete(make_spec(strategy=name, workers=2, machines="left")), system, no_probe) is None


def test_slices_are_of_this_machine(make_spec, make_system):
    spec = complete(make_spec(strategy="torch-ddp", workers=2, device="cuda-slice", slices=2, machines="left"))
    assert "slices are of one GPU of this machine" in refusal(spec, make_system(gpus=1), no_probe)


def test_machines_are_part_of_what_a_run_is(make_spec):
    assert make_spec().key() != make_spec(machines="left").key() != make_spec(machines="left,right").key()
