"""Why a strategy refuses a run, in words: fields that it does not heed; devices, links and machines that it lacks."""

from paceline.spec import RunSpec
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
    "batch_norm": "takes the statistics of batch norms as its framework does",
    "dropout": "draws dropout as its framework does",
    "checkpoint_every": "cannot save what it holds in the middle of training",
}


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
