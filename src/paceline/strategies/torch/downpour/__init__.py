"""Downpour SGD: asynchronous parameter servers; workers push gradients and fetch parameters in their own rhythm.

Dean et al., "Large Scale Distributed Deep Networks", NIPS 2012. Each worker trains on its share of each global batch
and waits for no other. The servers' optimizer and its rate are knobs, Adagrad as in the paper; weight decay and the
schedule of the rate are those of the run.
"""

from collections.abc import Callable
from dataclasses import replace
from math import lcm
from typing import Any

from paceline.contract.context import Context
from paceline.contract.job import Job, Service
from paceline.contract.strategy import Knob, Role, Strategy, Testing
from paceline.contract.traits import Traits
from paceline.costs.footprint import Footprint, ModelFacts
from paceline.costs.servers import Cut, Traffic, served_footprint
from paceline.frameworks.torch import declared
from paceline.spec import Optimizer, RunSpec
from paceline.systems import System


def roles(spec: RunSpec) -> tuple[Role, ...]:
    """Servers are processes like workers."""
    return Role("worker", spec.workers), Role("server", int(STRATEGY.knob_values(spec)["servers"]))


def server_optimizer(spec: RunSpec) -> Optimizer:
    """The settings that the servers use."""
    knobs = STRATEGY.knob_values(spec)
    return Optimizer.model_validate({**spec.optimizer.recipe, "name": knobs["server_optimizer"], "lr": knobs["lr"]})


def learning_rate(context: Context) -> Callable[[int], float]:
    """The rate of an update after so many others. A step of the run is one step of every worker."""
    spec, knobs, settings = context.spec, STRATEGY.knob_values(context.spec), server_optimizer(context.spec)
    total_steps = context.total_steps if settings.schedule == "cosine" else 0
    # The first gradients are large, stale and nothing yet to judge them by, so the first updates are small.
    warm_up, pushed_steps = max(1, int(knobs["warm_up_updates"])), int(knobs["n_push"])

    def rate(updates: int) -> float:
        step = updates * pushed_steps // spec.workers
        return settings.lr * min(1.0, (updates + 1) / warm_up) * settings.lr_factor(step, total_steps)

    return rate


def footprint(spec: RunSpec, model: ModelFacts) -> Footprint:
    """Synchronous servers, but with the rates of pushing and fetching; a step is one step of every worker."""
    knobs = STRATEGY.knob_values(spec)
    push, fetch = int(knobs["n_push"]), int(knobs["n_fetch"])
    # A push and a fetch in the same step take one word; only pushes are answered, with their staleness.
    words = 1 / push + 1 / fetch - 1 / lcm(push, fetch)
    traffic = Traffic(pushes=1 / push, fetches=1 / fetch, words=words, answers=1 / push)
    return served_footprint(spec, model, Cut.of(spec, knobs), server_optimizer(spec), traffic)


def check(spec: RunSpec, system: System) -> str | None:
    """Counts below one have no meaning, nor has a learning rate of nothing."""
    rate = STRATEGY.knob_values(spec)["lr"]
    refusal = None if float(rate) > 0 else f"knob lr of torch-downpour is {rate}; it must be more than 0"
    low = STRATEGY.knob_below_one(spec, "n_push", "n_fetch", "servers", "piece_kib")
    return low or refusal or declared.check_step(spec, system)


def open_job(context: Context) -> Job | Service:
    """A worker or a server."""
    from paceline.frameworks.torch.group import join_group
    from paceline.frameworks.torch.servers.links import Arrivals
    from paceline.strategies.torch.downpour.job import Downpour, DownpourJob, Rhythm

    arrivals = Arrivals(context) if context.spec.membership is not None else None
    if arrivals is None:
        join_group(context, backend="gloo")
    knobs = STRATEGY.knob_values(context.spec)
    cut = Cut.of(context.spec, knobs)
    if context.process.role == "server":
        return _server(context, cut, arrivals)
    from paceline.frameworks.torch.precision import compute_in_half
    from paceline.frameworks.torch.recompute import recompute
    from paceline.frameworks.torch.training import build, torch_device

    device = torch_device(context)
    module = build(context, device)
    compute_in_half(context.spec, module)
    recompute(context, module)
    rhythm = Rhythm(int(knobs["n_push"]), int(knobs["n_fetch"]), float(knobs["local_lr"]))
    links, life = arrivals.announce(cut.servers) if arrivals is not None else (None, 1)
    return DownpourJob(context, module, device, Downpour(context, module, device, cut, rhythm, links), life)


def _server(context: Context, cut: Cut, arrivals: Any) -> Service:
    """A server of all workers of a group, or of those who come."""
    from paceline.frameworks.torch.optimizer import make_optimizer
    from paceline.frameworks.torch.servers.server import Shard
    from paceline.strategies.torch.downpour.job import AsynchronousServer, OpenServer

    settings, rate = server_optimizer(context.spec), learning_rate(context)
    first: Any = arrivals.meet(0, 1) if arrivals is not None else None
    shard = Shard(context, cut, lambda pieces: make_optimizer(settings, pieces, eager=True), first)
    if arrivals is None:
        return AsynchronousServer(shard, rate)
    return OpenServer(shard, rate, arrivals, first)


STRATEGY = Strategy(
    name="torch-downpour",
    family="server",
    framework="torch",
    synchronous=False,
    about="asynchronous servers: workers push gradients and fetch parameters without waiting for others",
    use_when="workers differ in speed or come and go, and stale gradients are a fair price",
    footprint=footprint,
    open_job=open_job,
    knobs=(
        Knob("n_push", 1, "steps whose gradients a worker adds up before it pushes them"),
        Knob("n_fetch", 1, "steps from one fetch of the parameters to the next"),
        Knob("servers", 1, "processes that keep the parameters, an equal part each"),
        Knob("server_optimizer", "adagrad", "what the servers update with", ("adagrad", "adam", "adamw", "sgd")),
        Knob("lr", 0.01, "its learning rate"),
        Knob("warm_up_updates", 20, "updates over which its learning rate rises to full"),
        Knob("local_lr", 0.01, "step of a worker on its own copy between fetches, when n_fetch is above 1"),
        Knob("piece_kib", 2048, "most KiB of parameters in one message; small ones start earlier and cost more"),
    ),
    # A worker clips its own gradients: there are no others in an update.
    needs=replace(declared.NEEDS, heeds=declared.SERVED_STEP_FIELDS, roles=roles, check=check, membership="members"),
    traits=Traits(calibrated_like=("torch-ps-sync",), rate_knob="lr"),
    testing=Testing(must_reach_loss=0.8),
)
