"""Data and tensor parallelism: rows of workers split each layer, and rows average their gradients.

Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism", 2019.
"""

from dataclasses import replace

from paceline.contract.context import Context, spec_facts
from paceline.contract.job import Job
from paceline.contract.strategy import Knob, Strategy, always_cut_by
from paceline.contract.traits import Search, Traits, always, group_sizes_within_a_node
from paceline.costs.precision import autocast_numbers, compute_width
from paceline.costs.splits import Rows, tensor_footprint, why_not_split
from paceline.frameworks.torch import declared


def open_job(context: Context) -> Job:
    """Each worker averages the gradients of its parts with the workers that hold the same parts."""
    from paceline.frameworks.torch.precision import reduction_type
    from paceline.frameworks.torch.tensor.job import TensorJob, split_model
    from paceline.frameworks.torch.worker_grid import average_over_rows

    split = split_model(context, Rows.of(context.spec, STRATEGY.knob_values(context.spec)))
    average = average_over_rows(split.grid, split.module.parameters(), kind=reduction_type(context.spec))
    return TensorJob(context, split, average)


STRATEGY: Strategy = Strategy(
    name="torch-ddp-tensor",
    family="hybrid",
    framework="torch",
    about="rows of workers split each layer; gradients are averaged between rows",
    use_when="layers must be split, but only over the devices that share a very fast link",
    footprint=lambda spec, model: tensor_footprint(
        spec,
        Rows.of(spec, STRATEGY.knob_values(spec)),
        model,
        width=compute_width(spec),
        numbers=autocast_numbers(spec),
    ),
    open_job=open_job,
    knobs=(
        Knob("tensor", 2, "workers that split a model between them; the others form further rows"),
        Knob("convolutions", "split", "each worker has some output channels, or all of them", ("split", "replicated")),
    ),
    needs=replace(
        declared.NEEDS_OF_PARTS,
        heeds=frozenset({"reduction"}),
        cut_by=always_cut_by("plan"),
        check=lambda spec, _system: why_not_split(spec, STRATEGY.knob_values(spec), spec_facts),
    ),
    traits=Traits(
        replicas=lambda spec: Rows.of(spec, STRATEGY.knob_values(spec)).count,
        splits_layers=always,
        searched=(Search("tensor", group_sizes_within_a_node(other_than=2)),),
        calibrated_like=("torch-tensor",),
    ),
)
