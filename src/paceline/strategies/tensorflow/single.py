"""TensorFlow on one device: a traced training step, the reference of every TensorFlow strategy."""

from dataclasses import replace

from paceline.contract.context import Context
from paceline.contract.job import Job
from paceline.contract.strategy import Strategy, Testing
from paceline.costs import tensorflow as costs
from paceline.costs.footprint import Footprint
from paceline.frameworks.tensorflow import declared


def open_job(context: Context) -> Job:
    """The loop under TensorFlow's default strategy, which does nothing."""
    from paceline.frameworks.tensorflow.devices import prepare

    devices = prepare(context)
    import tensorflow as tf

    from paceline.frameworks.tensorflow.instrumentation import tf_job

    return tf_job(context, tf.distribute.get_strategy(), devices)


STRATEGY = Strategy(
    name="tf-single",
    family="single",
    framework="tensorflow",
    about="one worker, no communication, the step as a traced function",
    use_when="the model is small, or as the baseline of every TensorFlow comparison",
    footprint=lambda spec, model: Footprint((costs.trainer(spec, model, ranks=1),)),
    open_job=open_job,
    knobs=(declared.STEPS_PER_EXECUTION,),
    needs=replace(declared.NEEDS, heeds=declared.STEP_FIELDS, reads=declared.READS, fixed_workers=1),
    testing=Testing(
        # Other kernels than PyTorch's add in another order; the differences grow over 20 steps of Adam.
        tolerance=1e-3
    ),
)
