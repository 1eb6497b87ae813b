"""PyTorch DataParallel: one process, a thread per device, the model copied out anew for every batch.

The PyTorch of Ramkeesoon's study. Inputs are scattered, parameters broadcast, outputs gathered and gradients summed on
the first device, which also computes the loss and updates the model. Devices may be the same GPU several times.
"""

from dataclasses import replace

from paceline.contract.context import Context
from paceline.contract.job import Job
from paceline.contract.strategy import Strategy, one_process_for_all_workers
from paceline.contract.traits import Traits
from paceline.costs.footprint import FLOAT_BYTES, Footprint, ModelFacts, trainer
from paceline.costs.messages import exchange
from paceline.costs.precision import autocast_numbers
from paceline.frameworks.torch import declared
from paceline.spec import RunSpec
from paceline.systems import System


def check(spec: RunSpec, system: System) -> str | None:
    """Why not on CPU."""
    if spec.device == "cpu" or not system.gpus:
        return "nn.DataParallel needs CUDA devices: on CPU it silently runs one forward on the whole batch"
    return None


def footprint(spec: RunSpec, model: ModelFacts) -> Footprint:
    """The first device sends and receives for all others; copies of the model live for one step."""
    size, others, local = model.parameter_bytes, spec.workers - 1, spec.samples_per_step // spec.workers
    inputs = local * model.input_elements * FLOAT_BYTES
    outputs = local * model.layers[-1].output_elements * FLOAT_BYTES
    # The five exchanges of each batch: bytes from the first device to each of the others, and back.
    exchanges = (
        ("inputs", inputs, 0),
        ("parameters", size, 0),
        ("outputs", 0, outputs),
        ("gradients of outputs", outputs, 0),
        ("gradients", 0, size),
    )
    first = trainer(
        spec,
        model,
        tuple(exchange(name, there, back, others) for name, there, back in exchanges if others),
        ranks=1,
        numbers=autocast_numbers(spec),
    )
    first = replace(first, activation_bytes=first.activation_bytes + others * (inputs + outputs))
    to_first = tuple(exchange(name, back, there) for name, there, back in exchanges)
    other = trainer(spec, model, to_first, ranks=others, numbers=autocast_numbers(spec), optimizer_bytes=0)
    return Footprint((first, other) if others else (first,))


def open_job(context: Context) -> Job:
    """One process takes the whole global batch and deals it out to its devices."""
    import torch

    from paceline.frameworks.torch.training import TorchJob, build, optimizer_for, torch_device

    device = torch_device(context)
    module = build(context, device)
    gpus = [number % torch.cuda.device_count() for number in range(context.spec.workers)]
    wrapped = torch.nn.DataParallel(module, device_ids=gpus)
    return TorchJob(context, wrapped, device, optimizer_for(context, module), share=(0, 1))


STRATEGY = Strategy(
    name="torch-dp",
    family="data",
    framework="torch",
    about="one process: the model is copied to every device for each batch",
    use_when="several GPUs in one machine, one script, and no second process is wanted",
    footprint=footprint,
    open_job=open_job,
    needs=replace(
        declared.NEEDS,
        devices=("cuda", "cuda-slice"),
        precisions=declared.WHOLE_PARAMETERS,
        executions=("eager",),
        heeds=frozenset({"checkpoint_every"}),
        shares_gpu=True,
        roles=one_process_for_all_workers,
        check=check,
    ),
    traits=Traits(calibrated_like=("torch-ddp", "torch-zero", "torch-fsdp")),
)
