"""FSDP and tensor parallelism: rows of workers split each layer, and each worker's parts are divided over the rows.

The two-dimensional layout of torchtitan (Liang et al., ICLR 2025). Nothing that is split is held twice.
"""

from dataclasses import replace

from paceline.contract.context import Context, spec_facts
from paceline.contract.job import Job
from paceline.contract.strategy import Knob, Strategy, always_cut_by
from paceline.contract.traits import Search, Traits, always, group_sizes_within_a_node
from paceline.costs.footprint import Footprint, ModelFacts, in_groups, optimizer_bytes, trainer
from paceline.costs.messages import Message, all_gather, during, scattered_reduction
from paceline.costs.precision import cast_numbers, compute_width, parameter_width, reduction_width
from paceline.costs.splits import Rows, tensor_messages, why_not_split, worker_model
from paceline.costs.torch import arrays_of, shard_runs
from paceline.frameworks.torch import declared
from paceline.layout import Layout
from paceline.spec import RunSpec
from paceline.systems import System


def footprint(spec: RunSpec, model: ModelFacts) -> Footprint:
    """A shard of a part of everything is here for good, one layer's part for a while."""
    rows = Rows.of(spec, STRATEGY.knob_values(spec))
    splits, samples = rows.split(model), spec.samples_per_step // rows.count
    part = worker_model(splits, rows.ways)
    arrays = arrays_of(part.layers)
    largest = max(sum(array.padded(rows.count) for array in arrays_of([layer])) for layer in part.layers)
    width, gathered_width = parameter_width(spec), compute_width(spec)
    # Parameters that are cast are there beside the whole ones, as gathered ones are.
    gathered = largest * gathered_width if rows.count > 1 or gathered_width != width else 0
    messages = (
        *tensor_messages(spec, splits, rows.ways, samples, width=gathered_width),
        *_exchanged_between_rows(spec, part, rows),
    )
    return in_groups(
        trainer(
            spec,
            part,
            messages,
            samples=samples,
            ranks=ranks * rows.ways,
            parameter_bytes=held * width,
            gradient_bytes=held * width + largest * reduction_width(spec),
            optimizer_bytes=optimizer_bytes(spec.optimizer, held, part.tensors, width),
            # Gathered parameters come and go within a step as activations do.
            activation_bytes=part.kept_bytes(cast_numbers(spec)) * samples + gathered,
        )
        for ranks, held in shard_runs(arrays, rows.count)
    )


def _exchanged_between_rows(spec: RunSpec, part: ModelFacts, rows: Rows) -> tuple[Message, ...]:
    """Parameters are freed after the forward pass and gathered again for the backward one."""
    messages: list[Message] = []
    for layer in part.layers:
        numbers = sum(array.padded(rows.count) for array in arrays_of([layer]))
        if numbers:
            gathers = all_gather(f"parameters of {layer.name}", numbers * compute_width(spec), rows.count)
            reduced = numbers * reduction_width(spec)
            scattered = scattered_reduction(spec, f"gradients of {layer.name}", reduced, rows.count)
            messages += during(gathers, "forward", hidden=True, layer=layer.name, apart=rows.ways)
            both = (*gathers, *scattered)
            messages += during(both, "backward", hidden=True, layer=layer.name, apart=rows.ways)
    return tuple(messages)


def check(spec: RunSpec, system: System) -> str | None:
    """The workers must divide into rows, and the model over a row."""
    return why_not_split(spec, STRATEGY.knob_values(spec), spec_facts) or declared.check_sharding(spec, system)


def open_job(context: Context) -> Job:
    """Splits the layers first, then divides the parts over the rows: the optimizer must be made on what is left."""
    from paceline.frameworks.torch.tensor.job import ShardedTensorJob, shard_rows, split_model

    split = split_model(context, Rows.of(context.spec, STRATEGY.knob_values(context.spec)))
    shard_rows(context, split)
    return ShardedTensorJob(context, split)


def layout(spec: RunSpec) -> Layout:
    """Rows are the shards of composed layouts."""
    rows = Rows.of(spec, STRATEGY.knob_values(spec))
    return Layout(shard=rows.count, tensor=rows.ways)


STRATEGY: Strategy = Strategy(
    name="torch-fsdp-tensor",
    family="hybrid",
    framework="torch",
    about="rows of workers split each layer, and each part is divided over the rows",
    use_when="neither splitting layers nor dividing the model makes it fit alone",
    footprint=footprint,
    open_job=open_job,
    knobs=(
        Knob("tensor", 2, "workers that split each layer between them; the others form further rows"),
        Knob("convolutions", "split", "each worker has some output channels, or all of them", ("split", "replicated")),
    ),
    needs=replace(declared.NEEDS_OF_PARTS, heeds=frozenset({"reduction"}), cut_by=always_cut_by("plan"), check=check),
    traits=Traits(
        replicas=lambda spec: Rows.of(spec, STRATEGY.knob_values(spec)).count,
        splits_layers=always,
        layout=layout,
        searched=(Search("tensor", group_sizes_within_a_node(other_than=2)),),
        calibrated_like=("torch-tensor",),
    ),
)
