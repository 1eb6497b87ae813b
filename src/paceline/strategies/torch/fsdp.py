"""PyTorch FSDP2: parameters, gradients and optimizer state are divided over the workers, and gathered where needed.

Zhao et al., "PyTorch FSDP", VLDB 2023. Gathered once for each pass it is ZeRO stage 3, kept in between stage 2
(Rajbhandari et al., SC 2020). With replicas it is HSDP: divided within groups, gradients averaged across them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import cast

from paceline.contract.context import Context
from paceline.contract.job import Job
from paceline.contract.strategy import Knob, Strategy
from paceline.contract.traits import Peaks, Search, Traits, one_group_per_node
from paceline.costs.footprint import Footprint, ModelFacts, RankWork, in_groups, optimizer_bytes, trainer
from paceline.costs.layout_memory import mesh_peaks
from paceline.costs.layouts import REDUCE_ABOUT, REDUCTIONS, MeshPlan, Reduce
from paceline.costs.messages import Message, all_gather, all_reduce, during, scattered_reduction
from paceline.costs.precision import cast_numbers, compute_width, parameter_width, reduction_width
from paceline.costs.recompute import activation_bytes, step_flops
from paceline.costs.step_memory import StepMemory
from paceline.costs.torch import Array, arrays_of, shard_runs
from paceline.frameworks.torch import declared
from paceline.layout import Layout
from paceline.spec import RunSpec
from paceline.systems import System


def check(spec: RunSpec, system: System) -> str | None:
    """Groups of equal size, and an optimizer that works on parts."""
    replicas = int(STRATEGY.knob_values(spec)["hsdp_replicas"])
    if replicas < 1 or spec.workers % replicas:
        return f"{spec.workers} workers do not divide into {replicas} groups; use hsdp_replicas that divide them"
    if replicas > 1 and replicas == spec.workers:
        return f"hsdp_replicas {replicas} leave one worker in each group and nothing to divide; use fewer, or torch-ddp"
    if spec.optimizer.name == "lbfgs":
        return "torch-fsdp divides the optimizer by parameters and L-BFGS needs all of them at once; use another"
    passes = declared.check_recompute(spec) or declared.check_precision(spec) or declared.check_equality(spec)
    return declared.check_sharding(spec, system) or passes


def layout(spec: RunSpec) -> Layout:
    """Replicas are the copies of composed layouts."""
    replicas = int(STRATEGY.knob_values(spec)["hsdp_replicas"])
    return Layout(replicate=replicas, shard=spec.workers // replicas)


def footprint(spec: RunSpec, model: ModelFacts) -> Footprint:
    """A shard of everything is here for good, one unit's parameters and gradients for a while."""
    knobs, local = STRATEGY.knob_values(spec), spec.samples_per_step // spec.workers
    shards = spec.workers // int(knobs["hsdp_replicas"])
    units = units_of(model, by_layers=knobs["wrap"] == "layers")
    arrays, trained = arrays_of(model.unfrozen.layers), arrays_of(model.layers)
    width, gathered_width = parameter_width(spec), compute_width(spec)
    whole = [sum(array.padded(shards) for array in unit.arrays) for unit in units.values()]
    reduced = [sum(array.padded(shards) for array in unit.trained) for unit in units.values()]
    # Between the passes of a step, parameters stay gathered and gradients whole, unless each pass reduces them.
    several = spec.accumulation > 1 and knobs["reduce"] == "last"
    # With one worker the parameters are where they are needed, unless they are cast.
    stays = several or not knobs["reshard_after_forward"]
    gathered = (sum(whole) if stays else max(whole)) if shards > 1 or gathered_width != width else 0
    messages = tuple(message for name, unit in units.items() for message in unit_messages(spec, name, unit, shards))
    kept = activation_bytes(model, spec.recompute, local / spec.accumulation, numbers=cast_numbers(spec))
    # Each replica has the same runs of ranks.
    runs, flops = list(shard_runs_of(arrays, trained, shards)), step_flops(model, spec.recompute, local)
    return in_groups(
        trainer(
            spec,
            model,
            messages,
            ranks=ranks,
            flops=flops,
            parameter_bytes=held * width,
            gradient_bytes=of_trained * width + (sum(reduced) if several else max(reduced)) * reduction_width(spec),
            optimizer_bytes=optimizer_bytes(spec.optimizer, of_trained, len(trained), width),
            # Gathered parameters come and go within a step as activations do.
            activation_bytes=kept + gathered * gathered_width,
            work=RankWork(model, local / spec.accumulation, recompute=spec.recompute, gathers=shards > 1),
        )
        for _ in range(int(knobs["hsdp_replicas"]))
        for ranks, held, of_trained in runs
    )


def peaks(spec: RunSpec, model: ModelFacts, footprint: Footprint, step: StepMemory) -> list[float]:
    """Peaks of each group of ranks: those of the composed layout that shards everything over the same workers."""
    knobs = STRATEGY.knob_values(spec)
    replicas = int(knobs["hsdp_replicas"])
    layout = Layout(replicate=replicas, shard=spec.workers // replicas)
    samples, reduce = spec.samples_per_step // spec.workers, cast("Reduce", knobs["reduce"])
    plan = MeshPlan(layout, samples, spec.accumulation, reduce=reduce)
    by_layers = knobs["wrap"] == "layers" and bool(knobs["reshard_after_forward"])
    return mesh_peaks(spec, plan, model, footprint, step, gathers_layers=by_layers)


@dataclass(frozen=True)
class Unit:
    """Parameters that are gathered together, and those of them whose gradients are reduced."""

    arrays: list[Array]
    trained: list[Array]


def units_of(model: ModelFacts, by_layers: bool) -> dict[str, Unit]:
    """The parameters that are gathered together, by name."""
    if not by_layers:
        return {"model": Unit(arrays_of(model.unfrozen.layers), arrays_of(model.layers))}
    return {
        layer.name: Unit(arrays_of([layer.unfrozen]), arrays_of([layer]) if layer.parameters else [])
        for layer in model.layers
        if layer.unfrozen.parameters
    }


def shard_runs_of(arrays: list[Array], trained: list[Array], shards: int) -> Iterator[tuple[int, int, int]]:
    """Ranks in order that hold as much: how many, numbers in the shard of each, and those of them that are trained."""
    first = 0
    for ranks, held in shard_runs(arrays, shards):
        yield ranks, held, sum(array.shard(shards, first) for array in trained)
        first += ranks


def unit_messages(spec: RunSpec, name: str, unit: Unit, shards: int) -> tuple[Message, ...]:
    """Parameters gathered once or twice, gradients scattered, and averaged over the replicas."""
    knobs, all_passes = STRATEGY.knob_values(spec), {"count": spec.accumulation, "passes": spec.accumulation}
    reduced_in = all_passes if knobs["reduce"] == "each" else {}
    numbers = sum(array.padded(shards) for array in unit.arrays)
    reduced = sum(array.padded(shards) for array in unit.trained) * reduction_width(spec)
    scattered = scattered_reduction(spec, f"gradients of {name}", reduced, shards)
    gathered = all_gather(f"parameters of {name}", numbers * compute_width(spec), shards)
    replicas = all_reduce(f"gradient shards of {name}", reduced / shards, int(knobs["hsdp_replicas"]))
    return (
        *during(gathered, "forward", hidden=True, layer=name, **reduced_in),
        *(
            during(gathered, "backward", hidden=True, layer=name, **all_passes)
            if knobs["reshard_after_forward"]
            else ()
        ),
        *during(scattered, "backward", hidden=True, layer=name, **reduced_in),
        *during(replicas, "backward", hidden=True, layer=name, apart=shards, **reduced_in),
    )


def open_job(context: Context) -> Job:
    """Divides the module first: the optimizer must be made on the shards."""
    from paceline.frameworks.torch.blocks import compile_blocks
    from paceline.frameworks.torch.group import join_group
    from paceline.frameworks.torch.precision import hold_in_half
    from paceline.frameworks.torch.recompute import recompute
    from paceline.frameworks.torch.sharded import ShardedJob, shard_module
    from paceline.frameworks.torch.training import build, optimizer_for, torch_device

    device, knobs = torch_device(context), STRATEGY.knob_values(context.spec)
    join_group(context, with_host=context.spec.offload)
    module = build(context, device)
    hold_in_half(context.spec, module)
    recompute(context, module)
    compile_blocks(context, module)
    shard_module(
        context,
        module,
        by_layers=knobs["wrap"] == "layers",
        reshard_after_forward=bool(knobs["reshard_after_forward"]),
        replicas=int(knobs["hsdp_replicas"]),
    )
    optimizer = optimizer_for(context, module)
    return ShardedJob(context, module, device, optimizer, reduces_each=knobs["reduce"] == "each")


STRATEGY: Strategy = Strategy(
    name="torch-fsdp",
    family="data",
    framework="torch",
    about="parameters, gradients and optimizer state are divided over the workers (ZeRO stage 2 and 3)",
    use_when="the model with its gradients and optimizer state does not fit on one device",
    footprint=footprint,
    open_job=open_job,
    knobs=(
        Knob("wrap", "layers", "what is gathered at a time; whole works with any module", ("layers", "whole")),
        Knob("reshard_after_forward", True, "free gathered parameters after the forward pass (ZeRO 3) or not (ZeRO 2)"),
        Knob("reduce", "last", REDUCE_ABOUT, REDUCTIONS),
        Knob("hsdp_replicas", 1, "groups of workers that each hold the whole model; 1 divides it over all workers"),
    ),
    needs=replace(
        declared.NEEDS, heeds=declared.STEP_FIELDS | declared.EQUAL_FIELDS | {"reduction", "offload"}, check=check
    ),
    traits=Traits(
        saved_by="parts",
        peaks=Peaks(peaks, casts=True),
        searched=(Search("hsdp_replicas", one_group_per_node),),
        lighter_with={"reduce": "each"},
        layout=layout,
        timed_on=("mlp", "transformer"),
        calibrated_like=("torch-ddp", "torch-zero"),
        numbers=cast_numbers,
    ),
)
