"""Why a strategy refuses a run, in words: fields that it does not heed; devices, links and machines that it lacks."""

from paceline.contract.user_model_facts import UserModelFacts
from paceline.data.sources import INDEXED, SOURCE_WORDS
from paceline.spec import LOADER_FIELDS, RunSpec
from paceline.strategies import Strategy, strategies, strategy
from paceline.systems import System

# Fields that only some strategies heed, and what one that does not says of itself.
HEEDED_BY_SOME = {
    "layout": "divides a model in one way and takes no layout",
    "accumulation": "makes one pass per step and cannot accumulate gradients",
    "recompute": "keeps all activations and cannot compute them again",
    "clip": "does not clip gradients by their global norm",
    "reduction": "has no choice in which precision gradients are added up",
    "offload": "keeps what it trains where it computes",
    "noise_scale": "does not measure the noise of its gradients",
    "batch_norm": "takes the statistics of batch norms as its framework does",
    "dropout": "draws dropout as its framework does",
    "checkpoint_every": "cannot save what it holds in the middle of training",
}


# The knob of strategies that wait for the gradient of every parameter unless it is set.
FIND_UNUSED = "find_unused_parameters"


def process_count(spec: RunSpec) -> int:
    """Processes of all roles of a run."""
    return sum(role.processes for role in strategy(spec.strategy).needs.roles(spec))


def unheeded(spec: RunSpec, chosen: Strategy) -> str | None:
    """Why the run is refused: it sets a field that the strategy ignores; and which strategies do not ignore it."""
    defaults = RunSpec.model_fields
    for name, reason in HEEDED_BY_SOME.items():
        if getattr(spec, name) != defaults[name].default and name not in chosen.needs.heeds:
            heeding = [other for other in strategies().values() if name in other.needs.heeds]
            alike = [other for other in heeding if other.framework == chosen.framework] or heeding
            return f"{chosen.name} {reason}; leave {name} out, or use {', '.join(other.name for other in alike)}"
    return None


def waits_for_unused(spec: RunSpec, chosen: Strategy, facts: UserModelFacts) -> str | None:
    """Why the strategy would wait for gradients that a step leaves out, in words, or None."""
    if not facts.unused or chosen.knob_values(spec).get(FIND_UNUSED, True):
        return None
    first, *others = facts.unused
    more = f" and {len(others)} more" if others else ""
    return (
        f"{chosen.name} waits for the gradient of every parameter, and a pass through {spec.workload} gives "
        f"{first}{more} none; set its knob {FIND_UNUSED} (--knob {FIND_UNUSED}=true), or freeze them"
    )


def unread(spec: RunSpec, chosen: Strategy, facts: UserModelFacts | None) -> str | None:
    """Why the strategy cannot read the run's data, or not as the run says, in words; `facts` are of a user's model."""
    kind = "arrays" if facts is None else facts.source
    words = f"data() of {spec.workload} gives {SOURCE_WORDS[kind]}"
    if kind not in chosen.needs.reads:
        others = [other.name for other in strategies().values() if other.trains == chosen.trains
                  and kind in other.needs.reads]  # fmt: skip
        instead = f"use {', '.join(others)}" if others else "return arrays"
        return f"{words}, which {chosen.name} cannot read; {instead}"
    if kind != "arrays" and (reason := chosen.needs.why_not_read(spec)) is not None:
        return f"{words}, {reason}"
    return _unlike_loader(spec, chosen, facts) or (
        None if kind in INDEXED or facts is None else _unshared(spec, chosen, facts, words)
    )


def _unshared(spec: RunSpec, chosen: Strategy, facts: UserModelFacts, words: str) -> str | None:
    """Why the workers of a run cannot each have their part of a stream, in words, or None."""
    if spec.membership is not None:
        return f"{words}, and a worker of {chosen.name} that joins cannot go on in the middle; leave membership out"
    if process_count(spec) == 1:
        return None
    missing = sorted({"rank", "workers"} - set(facts.stream_takes))
    if missing:
        return (
            f"{words}, and the function that opens it takes no {' and no '.join(missing)}: all {spec.workers} workers "
            f"of {chosen.name} would train on the same samples; use parameters rank and workers, and give each its part"
        )
    if chosen.traits.replicas(spec) != spec.workers:
        return (
            f"{words}, and several workers of {chosen.name} would each read another batch where they need the same; "
            f"use a strategy that gives each worker a share of the batch, or return a data set of samples"
        )
    return None


def _unlike_loader(spec: RunSpec, chosen: Strategy, facts: UserModelFacts | None) -> str | None:
    """Why loader processes and the like are of no use to the run, in words, or None."""
    fields = [name for name in LOADER_FIELDS if getattr(spec, name) != RunSpec.model_fields[name].default]
    if not fields:
        return None
    kind, name = "arrays" if facts is None else facts.source, fields[0]
    if kind == "arrays":
        return f"{name} is for data that are read while {chosen.name} trains, and these lie in memory; leave {name} out"
    if not chosen.needs.loader_processes:
        return f"{chosen.name} reads its batches by itself; leave {name} out"
    if kind in INDEXED or facts is None:
        return None
    unheard = [name for name in fields if name not in facts.stream_takes and name != "pin_memory"]
    if not unheard:
        return None
    return (
        f"data() of {spec.workload} gives a function that does not take {unheard[0]}, and its stream is read as it "
        f"comes to {chosen.name}; use a parameter {unheard[0]} of the function, or leave it out"
    )


def unchanging(spec: RunSpec, chosen: Strategy) -> str | None:
    """Why the members of a run cannot change, in words, or None."""
    if spec.membership is None:
        return None
    if chosen.needs.membership is None:
        others = ", ".join(other.name for other in strategies().values() if other.needs.membership is not None)
        return (
            f"{chosen.name} ends when one of its workers does, and nobody can join it; "
            f"leave membership out, or use {others}"
        )
    if spec.workers < 2:
        return f"membership {spec.membership} of {chosen.name} leaves nobody of {spec.workers} worker; use more workers"
    if spec.machines or spec.device != "cpu":
        where = f"machines {spec.machines}" if spec.machines else f"device {spec.device}"
        return f"members of a run change on cores of this machine only, and {where} were asked for; leave that out"
    if chosen.needs.membership == "agents" and spec.checkpoint_every is None:
        return (
            f"{chosen.name} starts all its workers anew when one leaves or joins, and would begin again; "
            f"give checkpoint_every for something to go on from"
        )
    return None


def unsupported(spec: RunSpec, chosen: Strategy, system: System) -> str | None:
    """Why the strategy or this machine cannot do what the run asks for, or None."""
    if spec.instrumented and not chosen.needs.can_be_instrumented(spec):
        return f"the steps of {chosen.name} on {spec.device} cannot be instrumented"
    local = spec.samples_per_step // chosen.traits.replicas(spec)
    if local % spec.accumulation:
        return (
            f"a local batch of {local} does not divide into {spec.accumulation} micro-batches; "
            f"use a batch that does, or another accumulation"
        )
    for what, wanted, offered in (
        ("device", spec.device, chosen.needs.devices),
        ("precision", spec.precision, chosen.needs.precisions),
        ("execution", spec.execution, chosen.needs.executions),
    ):
        if wanted not in offered:
            return f"{chosen.name} does not run with {what} {wanted}; it offers {', '.join(offered)}"
    if (apart := _unlinked(spec, chosen, system) or _unfit_for_a_fleet(spec, chosen)) is not None:
        return apart
    if spec.device == "cpu":
        tf32 = f"{chosen.name} has no precision tf32 on device cpu: it exists on CUDA devices only; use fp32 or bf16"
        return tf32 if spec.precision == "tf32" else None
    return _missing_gpus(spec, chosen, system)


def _unlinked(spec: RunSpec, chosen: Strategy, system: System) -> str | None:
    """Why the run cannot be put behind the link that it asks for, or None."""
    if spec.link is None:
        return None
    if spec.device != "cpu":
        return (
            f"link {spec.link.text} is between processes on CPU cores, and device {spec.device} was asked for: "
            f"GPUs of one machine do not talk over its network; leave link out, or use device cpu"
        )
    if spec.machines:
        return (
            f"link {spec.link.text} is made between processes of this machine, and machines {spec.machines} have links "
            f"of their own; leave one of link and --on out"
        )
    if process_count(spec) == 1:
        return (
            f"{chosen.name} drives all workers from one process, so nothing crosses link {spec.link.text}; "
            f"leave link out, or use a strategy with a process for each worker"
        )
    return system.no_link(spec.link)


def _unfit_for_a_fleet(spec: RunSpec, chosen: Strategy) -> str | None:
    """Why a run cannot be spread over several machines, or started on another one."""
    if not spec.machines:
        return None
    if spec.device == "cuda-slice":
        return "slices are of one GPU of this machine; use --on local, or device cuda"
    if spec.several_machines and spec.workers > 1 and chosen.needs.one_machine:
        return (
            f"{chosen.name} has all its workers in one process, which cannot be on several machines "
            f"({spec.machines}); name one machine with --on"
        )
    return None


def _missing_gpus(spec: RunSpec, chosen: Strategy, system: System) -> str | None:
    workers, slices = spec.workers, spec.slices or spec.workers
    have = "its machines have" if spec.machines else "this machine has"
    if not system.gpus:
        return f"device {spec.device} was asked for and {have} no CUDA device"
    if spec.device == "cuda":
        short = len(system.gpus) < workers and not chosen.needs.shares_gpu
        return f"{workers} workers need as many GPUs and {have} {len(system.gpus)}" if short else None
    if system.no_slices is None and workers > slices:
        return f"{workers} workers need as many slices and the GPU is cut into {slices}; use --slices {workers}"
    return system.no_slices
