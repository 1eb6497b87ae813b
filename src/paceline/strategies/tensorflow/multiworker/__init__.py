"""TensorFlow MultiWorkerMirroredStrategy: one process per worker, gradients summed by collective operations.

RING sends over gRPC; NCCL is for GPUs. The loop is a custom one, as Keras 3's `fit` fails under this strategy.
"""

from dataclasses import replace

from paceline.contract.context import Context, Process
from paceline.contract.job import Job
from paceline.contract.strategy import Knob, Strategy, Testing, on_one_worker
from paceline.contract.traits import Traits
from paceline.costs import tensorflow as costs
from paceline.costs.footprint import Footprint, ModelFacts
from paceline.costs.messages import all_reduce
from paceline.frameworks.tensorflow import declared
from paceline.spec import RunSpec
from paceline.systems import System


def check(spec: RunSpec, system: System) -> str | None:
    """NCCL is for GPUs."""
    if STRATEGY.knob_values(spec)["communication"] == "nccl" and spec.device == "cpu":
        return "communication nccl needs GPUs; on CPU use ring or auto"
    return declared.check(spec, system)


def footprint(spec: RunSpec, model: ModelFacts) -> Footprint:
    """Everything is on every worker; the gradients go around once."""
    averages = all_reduce("gradients", model.parameter_bytes, spec.workers)
    return Footprint((costs.trainer(spec, model, averages),))


def environment(spec: RunSpec, process: Process) -> dict[str, str]:
    """TensorFlow's server takes over a port that this process holds already."""
    return {**declared.environment(spec, process), "TF_GRPC_REUSE_PORT": "1"}


def open_job(context: Context) -> Job:
    """The strategy's server starts with it, while the port is still held."""
    from paceline.frameworks.tensorflow.devices import prepare

    devices = prepare(context)
    import tensorflow as tf

    from paceline.frameworks.tensorflow.instrumentation import tf_job
    from paceline.strategies.tensorflow.multiworker.workers import Barrier, cluster, part

    knobs, distribute = STRATEGY.knob_values(context.spec), tf.distribute.experimental
    options = distribute.CommunicationOptions(
        implementation=distribute.CommunicationImplementation[str(knobs["communication"]).upper()],
        timeout_seconds=context.spec.collective_timeout_seconds,
    )
    with cluster(context):
        strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    return tf_job(context, strategy, devices, barrier=Barrier(strategy), leave=lambda: part(context))


STRATEGY = Strategy(
    name="tf-multiworker",
    family="data",
    framework="tensorflow",
    about="one process per worker: variables in each, gradients summed by collective operations",
    use_when="several machines, and TensorFlow or Keras as the framework",
    footprint=footprint,
    open_job=open_job,
    knobs=(
        Knob(
            "communication",
            "auto",
            "who sums the gradients: TensorFlow's ring over gRPC, or NCCL",
            ("auto", "ring", "nccl"),
        ),
        declared.STEPS_PER_EXECUTION,
    ),
    needs=replace(
        declared.NEEDS, heeds=declared.STEP_FIELDS, reads=declared.READS, environment=environment, check=check
    ),
    traits=Traits(saved_by="all"),
    testing=Testing(reference=on_one_worker("tf-single")),
)
