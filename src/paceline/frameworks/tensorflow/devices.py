"""The devices and thread pools of one TensorFlow process, set before TensorFlow is first used for anything."""

import tensorflow as tf

from paceline.contract.context import Context


def prepare(context: Context, replicas: int = 1) -> list[str]:
    """Sizes the pools for the process's cores and gives the devices of its replicas, as TensorFlow names them."""
    spec = context.spec
    # An operation of a replica runs in the thread that starts it; only replicas with several cores need a pool within
    # operations, and that pool is shared. Replicas run at the same time only if each has a thread to start from.
    several = spec.cores_per_worker > 1
    tf.config.threading.set_intra_op_parallelism_threads(max(1, len(context.process.cores)) if several else 1)
    tf.config.threading.set_inter_op_parallelism_threads(replicas)
    tf.config.experimental.enable_tensor_float_32_execution(False)
    return _gpus(context, replicas) if spec.device == "cuda" else _logical_cpus(replicas)


def _logical_cpus(replicas: int) -> list[str]:
    [cpu] = tf.config.list_physical_devices("CPU")
    if replicas > 1:
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * replicas)
    return [f"/cpu:{number}" for number in range(replicas)]


def _gpus(context: Context, replicas: int) -> list[str]:
    """The GPUs of this process on its machine."""
    first = context.process.device
    gpus = tf.config.list_physical_devices("GPU")[first : first + replicas]
    if len(gpus) < replicas:
        raise RuntimeError(f"{replicas} GPUs are wanted from number {first} on and TensorFlow sees {len(gpus)} there")
    tf.config.set_visible_devices(gpus, "GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    return [f"/gpu:{number}" for number in range(replicas)]
