"""Sandblaster L-BFGS: a coordinator hands out portions of a large batch, workers return gradients, servers keep shards.

Dean et al., "Large Scale Distributed Deep Networks", NIPS 2012. Parameters and L-BFGS history are cut over the servers;
the coordinator moves numbers only. Fast workers get more portions, slow portions are handed out twice.
"""

from dataclasses import replace
from typing import Any

from paceline.contract.context import Context
from paceline.contract.job import Job, Service
from paceline.contract.strategy import Knob, Role, Strategy, Testing
from paceline.contract.traits import Traits, one_replica
from paceline.costs.footprint import (
    FLOAT_BYTES,
    Footprint,
    ModelFacts,
    RankFootprint,
    optimizer_bytes,
    trainer,
    training_flops,
)
from paceline.costs.messages import Message, exchange
from paceline.costs.precision import autocast_copies, autocast_numbers
from paceline.costs.servers import WORD_BYTES, Cut, Piece
from paceline.frameworks.torch import declared
from paceline.spec import Optimizer, RunSpec
from paceline.strategies.torch.sandblaster.messages import ANSWER, WORKER_WORD, command_length, reply_length
from paceline.systems import System


def servers_of(spec: RunSpec) -> int:
    """How many processes keep the parameters."""
    return int(STRATEGY.knob_values(spec)["servers"])


def roles(spec: RunSpec) -> tuple[Role, ...]:
    """Workers, the one that tells them what to do, and servers."""
    return Role("worker", spec.workers), Role("coordinator", 1), Role("server", servers_of(spec))


def portions_of(spec: RunSpec) -> int:
    """How many portions a batch has; none is empty."""
    return min(spec.samples_per_step, spec.workers * int(STRATEGY.knob_values(spec)["portions_per_worker"]))


def settings_of(spec: RunSpec) -> Optimizer:
    """The optimizer that the servers are; the run's own is about other strategies."""
    knobs = STRATEGY.knob_values(spec)
    return Optimizer.model_validate({"name": "lbfgs", "lr": knobs["lr"], "history": knobs["history"]})


def reference(spec: RunSpec) -> RunSpec:
    """L-BFGS in PyTorch on one worker."""
    changed: dict[str, Any] = {"strategy": "torch-single", "workers": 1, "knobs": {}, "optimizer": settings_of(spec)}
    return spec.model_copy(update=changed)


def footprint(spec: RunSpec, model: ModelFacts) -> Footprint:
    """Every portion's gradients go to the servers, every worker fetches the parameters once, the rest is numbers."""
    portions, workers, size = portions_of(spec), spec.workers, model.parameter_bytes
    numbers = autocast_numbers(spec)
    # A worker asks for each portion and brings it, and asks once more when there are none.
    words = (2 * portions + workers) * WORD_BYTES
    command_bytes, reply_bytes = _command_bytes(spec), reply_length(settings_of(spec).history) * WORD_BYTES
    messages = (
        exchange("gradients", size, 0, portions / workers),
        exchange("parameters", 0, size),
        exchange("words", WORKER_WORD * words / workers, ANSWER * words / workers, control=True),
    )
    worker = replace(
        trainer(spec, model, messages),
        flops=training_flops(model, spec.samples_per_step / workers),
        # Of the portion in work, and of the one on its way.
        gradient_bytes=2 * size,
        optimizer_bytes=0,
        activation_bytes=model.kept_bytes(numbers) * -(-spec.samples_per_step // portions)
        + autocast_copies(model.layers, numbers),
    )
    pieces = Cut(servers_of(spec), model.parameters).pieces(model.parameters)
    sent, received = ANSWER * words + command_bytes * len(pieces), WORKER_WORD * words + reply_bytes * len(pieces)
    coordinator = RankFootprint("coordinator", 1, 0, (exchange("words", sent, received, control=True),))
    servers = (_server(piece, spec, exchange("words", reply_bytes, command_bytes, control=True)) for piece in pieces)
    return Footprint((worker, coordinator, *servers))


def _command_bytes(spec: RunSpec) -> int:
    """A server is told to take every portion, to send to every worker, to measure and to move."""
    commands = portions_of(spec) + spec.workers + 2
    return commands * command_length(settings_of(spec).history) * WORD_BYTES


def _server(piece: Piece, spec: RunSpec, words: Message) -> RankFootprint:
    size, settings = piece.elements * FLOAT_BYTES, settings_of(spec)
    return RankFootprint(
        role="server",
        ranks=1,
        # Portions are added; of each remembered pair five products are taken and two multiples added.
        flops=(portions_of(spec) + 2 * (5 + 2) * settings.history) * piece.elements,
        messages=(
            exchange("gradients", 0, size, portions_of(spec)),
            exchange("parameters", size, 0, spec.workers),
            words,
        ),
        parameter_bytes=size,
        # The sum, and two portions on their way.
        gradient_bytes=3 * size,
        optimizer_bytes=optimizer_bytes(settings, piece.elements, 1),
    )


def check(spec: RunSpec, _system: System) -> str | None:
    """Counts below one have no meaning, nor has a learning rate of nothing."""
    rate = STRATEGY.knob_values(spec)["lr"]
    refusal = None if float(rate) > 0 else f"knob lr of torch-sandblaster is {rate}; it must be more than 0"
    if spec.optimizer.recipe:
        refusal = (
            f"torch-sandblaster is an optimizer by itself and takes no {', '.join(spec.optimizer.recipe)} of "
            f"another; leave optimizer out, or use torch-ddp"
        )
    return STRATEGY.knob_below_one(spec, "portions_per_worker", "history", "servers") or refusal


def open_job(context: Context) -> Job | Service:
    """A worker, the coordinator or a server."""
    from paceline.frameworks.torch.group import join_group

    join_group(context, backend="gloo")
    spec, knobs = context.spec, STRATEGY.knob_values(context.spec)
    servers, portions, settings = servers_of(spec), portions_of(spec), settings_of(spec)
    if context.process.role == "worker":
        from paceline.frameworks.torch.training import build, torch_device
        from paceline.strategies.torch.sandblaster.job import SandblasterJob

        device = torch_device(context)
        return SandblasterJob(context, build(context, device), device, servers, portions, float(knobs["slow_rank_ms"]))
    from paceline.strategies.torch.sandblaster.servers import Coordinator, SliceServer

    if context.process.role == "coordinator":
        return Coordinator(context, servers, portions, settings.history, settings.lr)
    return SliceServer(context, servers, settings.history)


STRATEGY = Strategy(
    name="torch-sandblaster",
    family="server",
    framework="torch",
    about="L-BFGS on large batches: workers compute portions on demand, servers keep its history",
    use_when="batches are large, workers differ in speed, and a second-order method suits the model",
    footprint=footprint,
    open_job=open_job,
    knobs=(
        Knob("portions_per_worker", 4, "portions that the batch is cut into, per worker"),
        Knob("history", 10, "pairs of steps and gradient changes that L-BFGS remembers"),
        Knob("lr", 1.0, "how far to go along the direction, as there is no line search"),
        Knob("servers", 1, "processes that keep the parameters and the history, an equal part each"),
        Knob(
            "slow_rank_ms", 0.0, "milliseconds that the last worker sleeps in each portion, for trying out stragglers"
        ),
    ),
    # Any worker may be handed any part of a batch, which nobody can read ahead.
    needs=replace(
        declared.NEEDS,
        precisions=declared.WHOLE_PARAMETERS,
        roles=roles,
        check=check,
        reads=declared.NEEDS.reads - {"stream"},
        loader_processes=False,
    ),
    traits=Traits(
        # Workers take whatever portion comes next, so the batch need not divide over them.
        replicas=one_replica,
        calibrated_like=("torch-ps-sync",),
    ),
    testing=Testing(
        reference=reference,
        # L-BFGS is a method for whole batches: changes of the gradient mean something when its samples stay the same.
        # Without a line search full steps overshoot at first, and then rounding alone parts two runs of torch-single
        # (in the two memory formats) by up to 0.8 in 20 steps; with short steps they stay together.
        fields={"train_samples": 256, "global_batch": 256, "knobs": {"lr": 0.05}},
    ),
)
