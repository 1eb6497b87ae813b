"""TensorFlow CentralStorageStrategy: one process, variables on one device, computation on all of them.

Every device fetches the variables for its share of the batch; gradients are summed where the variables are.
"""

from dataclasses import replace

from paceline.contract.context import Context
from paceline.contract.job import Job
from paceline.contract.strategy import Strategy, Testing, on_one_worker, one_process_for_all_workers
from paceline.costs import tensorflow as costs
from paceline.costs.footprint import Footprint, ModelFacts
from paceline.costs.messages import exchange
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
    size, others = model.parameter_bytes, spec.workers - 1
    # Every pass fetches the variables anew.
    exchanges = (("parameters", size, 0, spec.accumulation), ("gradients", 0, size, 1))
    from_first = tuple(exchange(name, there, back, others * times) for name, there, back, times in exchanges if others)
    first = costs.trainer(spec, model, from_first, ranks=1)
    to_first = tuple(exchange(name, back, there, times) for name, there, back, times in exchanges)
    other = costs.trainer(spec, model, to_first, ranks=others, parameter_bytes=0, optimizer_bytes=0)
    return Footprint((first, other) if others else (first,))


def open_job(context: Context) -> Job:
    """One process for all devices; variables stay in the host's memory, as the strategy has it."""
    from paceline.frameworks.tensorflow.devices import prepare

    devices = prepare(context, context.spec.workers)
    import tensorflow as tf

    from paceline.frameworks.tensorflow.instrumentation import tf_job

    strategy = tf.distribute.experimental.CentralStorageStrategy(devices, parameter_device="/cpu:0")
    return tf_job(context, strategy, devices)


STRATEGY = Strategy(
    name="tf-central",
    family="data",
    framework="tensorflow",
    about="one process: variables in one place, every device computes on its share of the batch",
    use_when="variables do not fit on each GPU beside its activations, and the host's memory is near",
    footprint=footprint,
    open_job=open_job,
    knobs=(declared.STEPS_PER_EXECUTION,),
    needs=replace(
        declared.NEEDS,
        executions=("eager",),
        # Computed again, a block would fetch its variables again too.
        heeds=declared.STEP_FIELDS - {"recompute"},
        reads=declared.READS,
        roles=one_process_for_all_workers,
        check=check,
    ),
    testing=Testing(reference=on_one_worker("tf-single")),
)
