"""What can be said about TensorFlow runs without importing TensorFlow first."""

from paceline.contract.recompute import why_not_recomputed
from paceline.contract.strategy import Knob, Needs, on_cores
from paceline.data.sources import SourceKind
from paceline.spec import RunSpec
from paceline.systems import System

# What a template process imports once for all runs; none of it starts a thread.
PRELOAD = ("tensorflow", "keras", "paceline.frameworks.tensorflow.training")

# Fields of a run that the step of `TfJob` heeds.
STEP_FIELDS = frozenset({"accumulation", "recompute", "clip", "checkpoint_every"})
STEPS_PER_EXECUTION = Knob("steps_per_execution", 1, "training steps in one call of the traced function")


def steps_per_call(spec: RunSpec) -> int:
    """Training steps in one call of the traced function."""
    return int(spec.knobs.get(STEPS_PER_EXECUTION.name, STEPS_PER_EXECUTION.default))


def environment(_spec: RunSpec, _process: object) -> dict[str, str]:
    """Keras on TensorFlow, whatever the user's own settings say."""
    return {"KERAS_BACKEND": "tensorflow"}


def check(spec: RunSpec, _system: System) -> str | None:
    """Why no TensorFlow strategy can make such a run, in words, or None."""
    if spec.optimizer.name == "lbfgs":
        return "optimizer lbfgs is not there in TensorFlow; use adam, adamw, sgd or adagrad, or a PyTorch strategy"
    if spec.memory_format == "contiguous":
        return "TensorFlow on CPU has convolutions for channels_last images only; leave out memory_format contiguous"
    if steps_per_call(spec) < 1:
        return f"knob steps_per_execution of {spec.strategy} must be at least 1"
    return check_recompute(spec)


def check_recompute(spec: RunSpec) -> str | None:
    """Why such a run cannot recompute activations, in words, or None."""
    if spec.recompute == "selective":
        return (
            f"{spec.strategy} computes blocks again as a whole (tf.recompute_grad) and cannot keep some of what they "
            f"made; use recompute full"
        )
    if spec.recompute != "none" and spec.model is not None:
        return (
            f"{spec.strategy} does not know which layers of {spec.model.label} are worth computing again; "
            f"leave recompute out, and build them within keras.RematScope yourself"
        )
    return why_not_recomputed(spec)


def why_not_read(spec: RunSpec) -> str | None:
    """Why such a run cannot read data while it trains, in words, or None."""
    if steps_per_call(spec) > 1:
        return f"and {spec.strategy} is handed a batch in each step; leave steps_per_execution out"
    if spec.knobs.get("loop") == "fit":
        return f"and fit of {spec.strategy} is given data in memory; leave loop=fit out"
    return None


def is_out_of_memory(error: BaseException) -> bool:
    """TensorFlow has a type for it, on every device."""
    import tensorflow as tf

    return isinstance(error, tf.errors.ResourceExhaustedError | MemoryError)


# Of strategies whose steps are handed a batch where it does not lie on the devices.
READS: frozenset[SourceKind] = frozenset({"arrays", "memmap", "dataset", "stream", "tf.data"})
NEEDS = Needs(
    # Slices of a GPU have not been tried with TensorFlow.
    devices=("cpu", "cuda"),
    precisions=("fp32", "bf16"),
    # Eager stands for the usual way, a traced function; compiled is the same function through XLA.
    executions=("eager", "compiled"),
    packages=("keras",),
    user_models="keras",
    environment=environment,
    check=check,
    why_not_read=why_not_read,
    can_be_instrumented=on_cores,
    is_out_of_memory=is_out_of_memory,
)
