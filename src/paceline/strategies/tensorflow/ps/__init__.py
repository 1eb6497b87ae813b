"""TensorFlow ParameterServerStrategy: a chief hands out batches, workers train on them, servers keep the variables.

Li et al., "Scaling Distributed Machine Learning with the Parameter Server", OSDI 2014. Asynchronous: the chief
(`ClusterCoordinator`) gives a share of a batch to whichever worker is free, and no worker waits for another.
"""

from dataclasses import replace

from paceline.contract.context import Context, Process
from paceline.contract.job import Job, Service
from paceline.contract.strategy import Knob, Role, Strategy, Testing, on_cores
from paceline.contract.traits import always
from paceline.costs import tensorflow as costs
from paceline.costs.footprint import FLOAT_BYTES, Footprint, ModelFacts, RankFootprint
from paceline.costs.messages import exchange
from paceline.frameworks.tensorflow import declared
from paceline.spec import RunSpec
from paceline.strategies.tensorflow.ps.placement import ANSWER_BYTES, INDEX_BYTES, server_bytes
from paceline.systems import System


def knob(spec: RunSpec, name: str) -> int:
    """One of the counts above."""
    return int(STRATEGY.knob_values(spec)[name])


def roles(spec: RunSpec) -> tuple[Role, ...]:
    """The chief drives and is the first."""
    return Role("chief", 1), Role("worker", spec.workers), Role("server", max(1, knob(spec, "servers")))


def environment(spec: RunSpec, process: Process) -> dict[str, str]:
    """Environment of a process; TensorFlow shares its port, which is held until it listens there."""
    return declared.environment(spec, process) | {"TF_GRPC_REUSE_PORT": "true"}


def footprint(spec: RunSpec, model: ModelFacts) -> Footprint:
    """A worker fetches the whole model and pushes all gradients for each share; a step is one share for each worker."""
    workers, size, local = spec.workers, model.parameter_bytes, spec.samples_per_step // spec.workers
    shares = exchange("shares and losses", local * INDEX_BYTES, ANSWER_BYTES, workers, control=True)
    chief = RankFootprint("chief", 1, messages=(shares,))
    worker = costs.trainer(
        spec,
        model,
        (
            # Every pass fetches the variables anew.
            exchange("parameters", 0, size, spec.accumulation),
            exchange("gradients", size, 0),
            exchange("shares and losses", ANSWER_BYTES, local * INDEX_BYTES, control=True),
        ),
        parameter_bytes=0,
        optimizer_bytes=0,
        # The parameters that it fetched are there for the length of the step.
        activation_bytes=model.activation_bytes * local / spec.accumulation + size,
    )
    kept = server_bytes(model, max(1, knob(spec, "servers")))
    return Footprint((chief, worker, *(_server(spec, size, number) for number, size in enumerate(kept))))


def _server(spec: RunSpec, size: int, number: int) -> RankFootprint:
    # The optimizer's own counters are with the first server.
    beside = costs.optimizer_bytes(spec.optimizer, size // FLOAT_BYTES)
    return RankFootprint(
        role="server",
        ranks=1,
        # An update is small beside a training step.
        flops=spec.workers * size // FLOAT_BYTES,
        messages=(
            exchange("parameters", size, 0, spec.workers * spec.accumulation),
            exchange("gradients", 0, size, spec.workers),
        ),
        parameter_bytes=size,
        gradient_bytes=size * spec.workers,
        optimizer_bytes=beside if number == 0 else beside - costs.counter_bytes(spec.optimizer),
    )


def check(spec: RunSpec, system: System) -> str | None:
    """Counts below one have no meaning."""
    return STRATEGY.knob_below_one(spec, "servers", "ahead") or declared.check(spec, system)


def open_job(context: Context) -> Job | Service:
    """The chief, or a process that does what the chief says."""
    from paceline.strategies.tensorflow.ps.instrumented import chief_job
    from paceline.strategies.tensorflow.ps.job import Member

    if context.process.role != "chief":
        return Member(context)
    spec = context.spec
    return chief_job(context, knob(spec, "servers"), knob(spec, "ahead"), knob(spec, "steps_per_execution"))


STRATEGY = Strategy(
    name="tf-ps",
    family="server",
    framework="tensorflow",
    synchronous=False,
    about="a chief hands out batches; workers apply gradients to variables on servers without waiting",
    use_when="workers differ in speed or come and go, and TensorFlow is given",
    footprint=footprint,
    open_job=open_job,
    knobs=(
        Knob(
            "servers", 1, "processes that keep the variables; each variable is on one of them, large ones dealt first"
        ),
        Knob("ahead", 4, "steps handed out before the oldest is back; as far as workers can be apart"),
        declared.STEPS_PER_EXECUTION,
    ),
    needs=replace(
        declared.NEEDS,
        devices=("cpu",),
        executions=("eager",),
        # Computed again, a block would fetch its variables again too.
        heeds=declared.STEP_FIELDS - {"recompute"},
        one_tensor=always,
        roles=roles,
        environment=environment,
        check=check,
        membership="members",
        # Taken apart, a share is one pass.
        can_be_instrumented=lambda spec: on_cores(spec) and spec.accumulation == 1,
    ),
    testing=Testing(must_reach_loss=0.8),
)
