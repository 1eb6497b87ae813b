"""Tensor parallelism: every layer that divides is split over all workers, which sum or gather activations in between.

Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism", 2019.
"""

from dataclasses import replace

from paceline.contract.context import Context, spec_facts
from paceline.contract.job import Job
from paceline.contract.strategy import Knob, Strategy, always_cut_by
from paceline.contract.traits import Traits, always, one_replica
from paceline.costs.precision import autocast_numbers, compute_width
from paceline.costs.splits import Rows, tensor_footprint, why_not_split
from paceline.frameworks.torch import declared


def open_job(context: Context) -> Job:
    """Each worker keeps its part of every layer."""
    from paceline.frameworks.torch.tensor.job import TensorJob, split_model

    splits_convolutions = STRATEGY.knob_values(context.spec)["convolutions"] == "split"
    return TensorJob(context, split_model(context, splits_convolutions))


STRATEGY: Strategy = Strategy(
    name="torch-tensor",
    family="model",
    framework="torch",
    about="each layer is split over all workers, which exchange activations between layers",
    use_when="single layers are too large for one device and the devices share a very fast link",
    footprint=lambda spec, model: tensor_footprint(
        spec,
        Rows.of(spec, STRATEGY.knob_values(spec)),
        model,
        width=compute_width(spec),
        numbers=autocast_numbers(spec),
    ),
    open_job=open_job,
    knobs=(
        Knob("convolutions", "split", "each worker has some output channels, or all of them", ("split", "replicated")),
    ),
    needs=replace(
        declared.NEEDS_OF_PARTS,
        one_tensor=always,
        cut_by=always_cut_by("plan"),
        check=lambda spec, _system: why_not_split(spec, STRATEGY.knob_values(spec), spec_facts),
    ),
    traits=Traits(
        saved_by="parts",
        replicas=one_replica,
        splits_layers=always,
        timed_on=("mlp", "transformer"),
        calibrated_like=("torch-pipeline",),
    ),
)
