"""TensorFlow CentralStorageStrategy: one process, variables on one device, computation on all of them.

Every device fetches the variables for its share of the batch; gradients are summed where the variables are.
"""

from paceline.footprint import Footprint, ModelFacts, RankFootprint, exchange, training_flops
from paceline.frameworks import tf_facts
from paceline.spec import RunSpec
from paceline.strategies.base import Context, Job, Role, Strategy, on_cores, on_one_worker
from paceline.systems import System


def check(spec: RunSpec, _system: System) -> str | None:
    """XLA wants its variables where it computes."""
    if spec.execution == "compiled":
        return "execution compiled does not go with tf-central: XLA cannot read variables of another device; use eager"
    return tf_facts.check(spec)


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
        optimizer_bytes=tf_facts.optimizer_bytes(spec.optimizer, model.parameters),
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
    from paceline.frameworks.tf_devices import prepare

    devices = prepare(context, context.spec.workers)
    import tensorflow as tf

    from paceline.frameworks.tf_noted import tf_job

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
    check=check,
    open_job=open_job,
    devices=tf_facts.DEVICES,
    traces=on_cores,
    knobs=(tf_facts.STEPS_PER_EXECUTION,),
    precisions=tf_facts.PRECISIONS,
    environment=tf_facts.environment,
    roles=lambda spec: (Role("worker", 1, workers_each=spec.workers),),
    needs=("keras",),
    own_models="keras",
    reference=on_one_worker("tf-single"),
    is_out_of_memory=tf_facts.is_out_of_memory,
)
