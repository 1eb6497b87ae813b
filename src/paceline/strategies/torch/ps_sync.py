"""PyTorch with synchronous parameter servers: workers push gradients, servers update, workers pull.

Li et al., "Scaling Distributed Machine Learning with the Parameter Server", OSDI 2014. Servers are processes of their
own. The parameters are cut over them by bytes, in pieces that travel and are updated while the backward pass runs.
"""

from dataclasses import replace

from paceline.contract.context import Context
from paceline.contract.job import Job, Service
from paceline.contract.strategy import Knob, Role, Strategy
from paceline.contract.traits import Traits
from paceline.costs.footprint import Footprint, ModelFacts
from paceline.costs.servers import Cut, Traffic, served_footprint
from paceline.frameworks.torch import declared
from paceline.spec import RunSpec
from paceline.systems import System


def roles(spec: RunSpec) -> tuple[Role, ...]:
    """Servers are processes like workers."""
    return Role("worker", spec.workers), Role("server", int(STRATEGY.knob_values(spec)["servers"]))


def footprint(spec: RunSpec, model: ModelFacts) -> Footprint:
    """Each step every gradient goes to a server once and every parameter comes back once."""
    return served_footprint(spec, model, Cut.of(spec, STRATEGY.knob_values(spec)), spec.optimizer, Traffic())


def check(spec: RunSpec, system: System) -> str | None:
    """Why parameter servers cannot train such a run, in words, or None."""
    low = STRATEGY.knob_below_one(spec, "servers", "piece_kib")
    if low is None and spec.optimizer.name == "lbfgs":
        return (
            "torch-ps-sync updates pieces of the parameters one by one, and lbfgs needs all of them at once; "
            "use torch-sandblaster, or adam, adamw, sgd or adagrad"
        )
    return low or declared.check_step(spec, system)


def open_job(context: Context) -> Job | Service:
    """A worker or a server."""
    from paceline.frameworks.torch.group import join_group
    from paceline.frameworks.torch.servers.server import Shard, SynchronousServer, elementwise_optimizer, serving_order

    join_group(context, backend="gloo")
    cut, order = Cut.of(context.spec, STRATEGY.knob_values(context.spec)), serving_order(context)
    if context.process.role == "server":
        return SynchronousServer(Shard(context, cut, elementwise_optimizer(context)), order)
    from paceline.frameworks.torch.precision import compute_in_half
    from paceline.frameworks.torch.recompute import recompute
    from paceline.frameworks.torch.servers.client import ServedJob, ServerClient
    from paceline.frameworks.torch.training import build, torch_device

    device = torch_device(context)
    module = build(context, device)
    compute_in_half(context.spec, module)
    recompute(context, module)
    return ServedJob(context, module, device, ServerClient(context, module, device, cut))


STRATEGY = Strategy(
    name="torch-ps-sync",
    family="server",
    framework="torch",
    about="workers push gradients to servers, which update the parameters that workers pull",
    use_when="workers have no memory for optimizer state, or fast links to a few hosts but not to each other",
    footprint=footprint,
    open_job=open_job,
    knobs=(
        Knob("servers", 1, "processes that keep the parameters, an equal part each"),
        Knob("piece_kib", 2048, "most KiB of parameters in one message; small ones start earlier and cost more"),
    ),
    # The norm of all gradients, which clip asks for, is known to no process: each server has some of them.
    needs=replace(declared.NEEDS, heeds=declared.SERVED_STEP_FIELDS - {"clip"}, roles=roles, check=check),
    traits=Traits(timed_on=("mlp",)),
)
