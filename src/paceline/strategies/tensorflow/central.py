"""TensorFlow CentralStorageStrategy: one process, variables on one device, computation on all of them.

Every device fetches the variables for its share of the batch; gradients are summed where the variables are.
"""

from dataclasses import replace

from paceline.contract.context import Context
from paceline.contract.job import Job
from paceline.contract.strategy import Strategy, Testing, on_one_worker, one_process_for_all_workers
from paceline.costs import tensorflow as costs
from paceline.costs.footprint import Footprint, ModelFacts, RankFootprint, exchange, training_flops
from paceline.frameworks.tensorflow import declared
from paceline.spec import RunSpec
from paceline.systems import System


def check(spec: RunSpec, system: System) -> str | None:
    """XLA wants its variables where it computes."""
    if spec.execution == "compiled":
        return "execution compiled does not go with tf-central: XLA cannot read variables of another device; use eager"
    return declared.check(spec, system)


def footprint(spec: RunSpec, model: ModelFacts) -> Footprint:
    """The first device's memory has the variables; the others fetch them and send gradients in every step."""
    size, others, local = model.parameter_bytes, spec.workers - 1, spec.samples_per_step // spec.workers
    exchanges = (("parameters", size, 0), ("gradients", 0, size))
    first = RankFootprint(
        role="worker",
        ranks=1,
        flops=training_flops(model, local),
        messages=tuple(exchange(name, there, back, others) for name, there, back in exchanges if others),
        parameter_bytes=size,
        gradient_bytes=size,
        optimizer_bytes=costs.optimizer_bytes(spec.optimizer, model.parameters),
        activation_bytes=model.activation_bytes * local,
    )
    other = RankFootprint(
        role="worker",
        ranks=others,
        flops=training_flops(model, local),
        messages=tuple(exchange(name, back, there) for name, there, back in exchanges),
        parameter_bytes=0,
        gradient_bytes=size,
        optimizer_bytes=0,
        activation_bytes=model.activation_bytes * local,
    )
    return Footprint((first, other) if others else (first,))


def open_job(context: Context) -> Job:
    """One process for all devices; variables stay in the host's memory, as the strategy has it."""
    from paceline.frameworks.tensorflow.devices import prepare

    devices = prepare(context, context.spec.workers)
    import tensorflow as tf

    from paceline.frameworks.tensorflow.instrumentation import tf_job

    strategy = tf.distribute.experimental.CentralStorageStrategy(devices, parameter_device="/cpu:0")
    return tf_job(context, strategy, devices, stride=int(STRATEGY.knob_values(context.spec)["steps_per_execution"]))


STRATEGY = Strategy(
    name="tf-central",
    family="data",
    framework="tensorflow",
    synchronous=True,
    about="one process: variables in one place, every device computes on its share of the batch",
    use_when="variables do not fit on each GPU beside its activations, and the host's memory is near",
    footprint=footprint,
    open_job=open_job,
    knobs=(declared.STEPS_PER_EXECUTION,),
    needs=replace(declared.NEEDS, executions=("eager",), roles=one_process_for_all_workers, check=check),
    testing=Testing(reference=on_one_worker("tf-single")),
)
