"""PyTorch on one worker: the reference that every synchronous strategy must follow."""

from dataclasses import replace

from paceline.contract.context import Context
from paceline.contract.job import Job
from paceline.contract.strategy import Strategy
from paceline.contract.traits import Traits
from paceline.costs.footprint import Footprint, ModelFacts, trainer
from paceline.costs.precision import autocast_numbers
from paceline.costs.recompute import activation_bytes, step_flops
from paceline.frameworks.torch import declared
from paceline.layout import Layout
from paceline.spec import RunSpec


def footprint(spec: RunSpec, model: ModelFacts) -> Footprint:
    """Everything is here and nothing is sent."""
    samples = spec.samples_per_step / spec.accumulation
    held = activation_bytes(model, spec.recompute, samples, numbers=autocast_numbers(spec))
    flops = step_flops(model, spec.recompute, spec.samples_per_step)
    return Footprint((trainer(spec, model, ranks=1, flops=flops, activation_bytes=held),))


def open_job(context: Context) -> Job:
    """A plain training loop."""
    from paceline.frameworks.torch.gradients.noise import with_noise
    from paceline.frameworks.torch.precision import compute_in_half
    from paceline.frameworks.torch.recompute import recompute
    from paceline.frameworks.torch.training import TorchJob, build, optimizer_for, torch_device

    device = torch_device(context)
    module = build(context, device)
    compute_in_half(context.spec, module)
    recompute(context, module)
    kind = with_noise(TorchJob, context.spec.noise_scale)
    job = kind(context, module, device, optimizer_for(context, module))
    if not job.graphed:
        return job
    from paceline.frameworks.torch.cuda_graph import GraphedJob

    return GraphedJob(job)


STRATEGY = Strategy(
    name="torch-single",
    family="single",
    framework="torch",
    about="one worker, no communication",
    use_when="the model is small, or as the baseline of every comparison",
    footprint=footprint,
    open_job=open_job,
    needs=replace(
        declared.NEEDS,
        executions=declared.GRAPH_EXECUTIONS,
        heeds=declared.STEP_FIELDS | declared.EQUAL_FIELDS | {"noise_scale"},
        fixed_workers=1,
        check=declared.check_step,
    ),
    traits=Traits(layout=lambda _spec: Layout()),
)
