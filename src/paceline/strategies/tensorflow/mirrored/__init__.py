"""TensorFlow MirroredStrategy: one process, a copy of every variable on each device, gradients summed between them.

The strategy of both studies, which trained with Keras' `fit` (knob `loop`). On CPU devices are logical, a core each.
"""

from dataclasses import replace

from paceline.contract.context import Context
from paceline.contract.job import Job
from paceline.contract.strategy import Knob, Strategy, Testing, on_one_worker, one_process_for_all_workers
from paceline.contract.traits import Traits
from paceline.costs import tensorflow as costs
from paceline.costs.footprint import Footprint, ModelFacts
from paceline.costs.messages import all_reduce, exchange
from paceline.frameworks.tensorflow import declared
from paceline.spec import RunSpec
from paceline.systems import System


def check(spec: RunSpec, system: System) -> str | None:
    """Knobs that do not fit the device or each other."""
    knobs = STRATEGY.knob_values(spec)
    if knobs["cross_device_ops"] == "nccl" and spec.device == "cpu":
        return (
            "cross_device_ops nccl needs GPUs: TensorFlow has no kernel of NcclAllReduce for CPU devices; "
            "use auto, hierarchical_copy or one_device"
        )
    if knobs["loop"] == "fit" and knobs["steps_per_execution"] != 1:
        return "loop fit tells one loss per call, so steps_per_execution must be 1 there; leave it out or use custom"
    if knobs["loop"] == "fit" and spec.checkpoint_every is not None:
        return (
            "loop fit of tf-mirrored makes an epoch in one call and cannot save in the middle of it; "
            "leave checkpoint_every out, or use loop custom"
        )
    unmade = "accumulation" if spec.accumulation > 1 else "clip" if spec.clip is not None else None
    if knobs["loop"] == "fit" and unmade:
        return (
            f"loop fit is Keras' own step, which knows nothing of {unmade} over all replicas; "
            f"leave {unmade} out, or use loop custom"
        )
    return declared.check(spec, system)


def footprint(spec: RunSpec, model: ModelFacts) -> Footprint:
    """Everything is on every device; the gradients go around once, or to the first device and back."""
    size, workers = model.parameter_bytes, spec.workers
    if STRATEGY.knob_values(spec)["cross_device_ops"] == "one_device" and workers > 1:
        first = costs.trainer(spec, model, (exchange("gradients", size, size, workers - 1),), ranks=1)
        return Footprint((first, costs.trainer(spec, model, (exchange("gradients", size, size),), ranks=workers - 1)))
    return Footprint((costs.trainer(spec, model, all_reduce("gradients", size, workers)),))


def open_job(context: Context) -> Job:
    """One process for all devices."""
    from paceline.frameworks.tensorflow.devices import prepare

    devices, knobs = prepare(context, context.spec.workers), STRATEGY.knob_values(context.spec)
    import tensorflow as tf

    from paceline.frameworks.tensorflow.instrumentation import tf_job
    from paceline.strategies.tensorflow.mirrored.fit import fit_job

    reducers = {
        "nccl": tf.distribute.NcclAllReduce,
        "hierarchical_copy": tf.distribute.HierarchicalCopyAllReduce,
        "one_device": tf.distribute.ReductionToOneDevice,
    }
    reducer = reducers.get(str(knobs["cross_device_ops"]), lambda: None)()
    strategy = tf.distribute.MirroredStrategy(devices, cross_device_ops=reducer)
    if knobs["loop"] == "fit":
        return fit_job(context, strategy, devices)
    return tf_job(context, strategy, devices)


STRATEGY: Strategy = Strategy(
    name="tf-mirrored",
    family="data",
    framework="tensorflow",
    about="one process: variables copied to every device, gradients summed between them",
    use_when="several GPUs in one machine and TensorFlow or Keras as the framework",
    footprint=footprint,
    open_job=open_job,
    knobs=(
        Knob(
            "cross_device_ops",
            "auto",
            "how gradients are summed; auto is what TensorFlow chooses for the devices",
            ("auto", "nccl", "hierarchical_copy", "one_device"),
        ),
        Knob("loop", "custom", "a loop of one's own, or Keras' fit as the studies used it", ("custom", "fit")),
        declared.STEPS_PER_EXECUTION,
    ),
    needs=replace(
        declared.NEEDS,
        heeds=declared.STEP_FIELDS,
        reads=declared.READS,
        roles=one_process_for_all_workers,
        check=check,
        # Keras' `fit` has a loss for each output.
        one_tensor=lambda spec: STRATEGY.knob_values(spec)["loop"] == "fit",
    ),
    traits=Traits(usual_on_several_devices=True),
    testing=Testing(reference=on_one_worker("tf-single")),
)
