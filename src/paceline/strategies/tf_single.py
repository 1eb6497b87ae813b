"""TensorFlow on one device: a traced training step, the reference of every TensorFlow strategy."""

from paceline.footprint import Footprint, ModelFacts, RankFootprint, training_flops
from paceline.frameworks import tf_facts
from paceline.spec import RunSpec
from paceline.strategies.base import Context, Job, Strategy, on_cores, on_one_worker


def footprint(spec: RunSpec, model: ModelFacts) -> Footprint:
    """Everything is here and nothing is sent."""
    worker = RankFootprint(
        role="worker",
        ranks=1,
        flops=training_flops(model, spec.samples_per_step),
        messages=(),
        parameter_bytes=model.parameter_bytes,
        gradient_bytes=model.parameter_bytes,
        optimizer_bytes=tf_facts.optimizer_bytes(spec.optimizer, model.parameters),
        activation_bytes=model.activation_bytes * spec.samples_per_step,
    )
    return Footprint((worker,))


def open_job(context: Context) -> Job:
    """The loop under TensorFlow's default strategy, which does nothing."""
    from paceline.frameworks.tf_devices import prepare

    devices = prepare(context)
    import tensorflow as tf

    from paceline.frameworks.tf_noted import tf_job

    stride = int(STRATEGY.knob_values(context.spec)["steps_per_execution"])
    return tf_job(context, tf.distribute.get_strategy(), devices, stride=stride)


STRATEGY = Strategy(
    name="tf-single",
    family="single",
    framework="tensorflow",
    synchronous=True,
    about="one worker, no communication, the step as a traced function",
    use_when="the model is small, or as the baseline of every TensorFlow comparison",
    footprint=footprint,
    check=lambda spec, _system: tf_facts.check(spec),
    open_job=open_job,
    devices=tf_facts.DEVICES,
    traces=on_cores,
    knobs=(tf_facts.STEPS_PER_EXECUTION,),
    precisions=tf_facts.PRECISIONS,
    executions=tf_facts.EXECUTIONS,
    environment=tf_facts.environment,
    fixed_workers=1,
    needs=("keras",),
    own_models="keras",
    reference=on_one_worker("torch-single"),
    # Other kernels than PyTorch's add in another order; the differences grow over 20 steps of Adam.
    tolerance=1e-3,
    is_out_of_memory=tf_facts.is_out_of_memory,
)
