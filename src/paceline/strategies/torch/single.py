"""PyTorch on one worker: the reference that every synchronous strategy must follow."""

from dataclasses import replace

from paceline.contract.context import Context
from paceline.contract.job import Job
from paceline.contract.strategy import Strategy
from paceline.costs.footprint import Footprint, trainer
from paceline.frameworks.torch import declared


def open_job(context: Context) -> Job:
    """A plain training loop."""
    from paceline.frameworks.torch.training import TorchJob, build, optimizer_for, torch_device

    device = torch_device(context)
    module = build(context, device)
    job = TorchJob(context, module, device, optimizer_for(context, module))
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
    footprint=lambda spec, model: Footprint((trainer(spec, model, samples=spec.samples_per_step, ranks=1),)),
    open_job=open_job,
    needs=replace(declared.NEEDS, executions=declared.GRAPH_EXECUTIONS, fixed_workers=1, check=declared.check_graph),
)
