"""Training on a DTensor mesh: samples divided along one dimension, layers along the other, one traced function.

Variables and batches have layouts; TensorFlow expands the function into one per device, with collectives between.
"""

import math
import tempfile
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

from paceline.contract.context import Context
from paceline.costs.splits import Rows
from paceline.frameworks.keras.model import keras_inputs
from paceline.frameworks.tensorflow.checkpoint import TfCheckpoint
from paceline.frameworks.tensorflow.devices import prepare
from paceline.frameworks.tensorflow.passes import clip_factor
from paceline.frameworks.tensorflow.training import TfJob
from paceline.frameworks.xla_spans import INPUT, STEP, UPDATE, add_operation_spans, clock_ahead
from paceline.spec import Optimizer
from paceline.strategies.tensorflow.dtensor.model import BATCH, MODEL, WHOLE, Network, StoredArray, stored_arrays
from paceline.strategies.tensorflow.dtensor.profile import collectives_of, executed, operations_of, read_events
from paceline.workloads.base import Weights, model_facts

SLOTS = {"adam": ("first", "second"), "adagrad": ("total",), "momentum": ("velocity",)}
# The level from which on the profiler tells single operations.
OPERATIONS = 2


class Placer:
    """Puts arrays on the mesh."""

    def __init__(self, devices: list[str], rows: Rows) -> None:
        named = [device.strip("/").upper() for device in devices]
        self.mesh = dtensor.create_mesh([(BATCH, rows.count), (MODEL, rows.ways)], devices=named)

    def put(self, array: np.ndarray | np.generic, specs: list[str] | None = None) -> tf.Tensor:
        """Each device gets its part, or all of it where nothing is divided."""
        array = np.asarray(array, order="C")
        everywhere = dtensor.Layout.replicated(self.mesh, array.ndim)
        whole = dtensor.copy_to_mesh(tf.constant(array), everywhere)
        wanted = dtensor.Layout(specs, self.mesh) if specs else everywhere
        return whole if wanted == everywhere else dtensor.relayout(whole, wanted)


class Update:
    """The run's optimizer, of which each device has what belongs to its part of each array."""

    def __init__(
        self, settings: Optimizer, placer: Placer, stored: dict[str, StoredArray], ways: int, total_steps: int
    ) -> None:
        slots = SLOTS.get(settings.update_name, ())
        self._settings = settings
        self._decayed = {name for name, array in stored.items() if settings.decays(len(array.neutral))}
        self._slots = {
            name: [dtensor.DVariable(placer.put(np.zeros(array.shape, np.float32), array.specs(ways))) for _ in slots]
            for name, array in stored.items()
        }
        counts = settings.update_name == "adam" or settings.scheduled
        self._steps = dtensor.DVariable(placer.put(np.float32(0))) if counts else None
        # The rate of each step, to be looked up; None where it stays the same.
        rates = np.array([settings.lr * factor for factor in settings.lr_factors(total_steps)], np.float32)
        self._rates = placer.put(rates) if settings.scheduled else None

    @property
    def variables(self) -> list[dtensor.DVariable]:
        """All that it keeps."""
        return [slot for slots in self._slots.values() for slot in slots] + ([self._steps] if self._steps else [])

    def __call__(self, variables: dict[str, dtensor.DVariable], gradients: dict[str, tf.Tensor]) -> None:
        """One step of all arrays."""
        settings, number = self._settings, None
        if self._steps is not None:
            number = self._steps + 1.0
            self._steps.assign(number)
        rate = self._rate(number)
        for name, variable in variables.items():
            gradient, decay = gradients[name], settings.weight_decay * variable if name in self._decayed else None
            decoupled = settings.name == "adamw"
            if decay is not None and not decoupled:
                gradient += decay
            direction = self._direction(self._slots[name], gradient, number)
            variable.assign_sub(rate * (direction + decay if decay is not None and decoupled else direction))

    def _rate(self, number: tf.Tensor | None) -> Any:
        """The learning rate of a step, counted from 1."""
        if self._rates is None or number is None:
            return self._settings.lr
        return tf.gather(self._rates, tf.minimum(tf.cast(number, tf.int64) - 1, self._rates.shape[0] - 1))

    def _direction(self, slots: list[dtensor.DVariable], gradient: tf.Tensor, number: tf.Tensor | None) -> tf.Tensor:
        """Values are used as computed, not as read again from where they were put."""
        settings = self._settings
        if settings.update_name == "adam":
            beta1, beta2 = settings.betas
            first = beta1 * slots[0] + (1 - beta1) * gradient
            second = beta2 * slots[1] + (1 - beta2) * tf.square(gradient)
            slots[0].assign(first)
            slots[1].assign(second)
            root = tf.sqrt(second / (1 - tf.pow(beta2, number))) + settings.eps
            return first / (1 - tf.pow(beta1, number)) / root
        if settings.name == "adagrad":
            total = slots[0] + tf.square(gradient)
            slots[0].assign(total)
            return gradient / (tf.sqrt(total) + settings.eps)
        if slots:
            gradient = settings.momentum * slots[0] + gradient
            slots[0].assign(gradient)
        return gradient


class DtensorCheckpoint(TfCheckpoint):
    """Variables of which each device has a part."""

    def arrays(self, variable: tf.Variable) -> list[np.ndarray]:
        """The part on each device."""
        return [part.numpy() for part in dtensor.unpack(variable.read_value())]


class DtensorJob(TfJob):
    """One process and all devices of the mesh; its variables are no Keras variables, so it makes its own."""

    def __init__(self, context: Context, rows: Rows, stride: int) -> None:
        layers, shape, weights = context.model.layers, context.data.input_shape, context.starting_weights()
        self.stride, self._context, self._rows = stride, context, rows
        self._strategy, self._barrier, self._leave = tf.distribute.get_strategy(), lambda: None, lambda: None
        devices = prepare(context, context.spec.workers)
        self._devices, self._placer = devices[:1], Placer(devices, rows)
        splits = rows.split(model_facts(layers, shape))
        self._stored = stored_arrays(layers, shape, splits)
        self._network = Network(layers, shape, splits, self._placer.mesh)
        self._arrays = {
            name: dtensor.DVariable(self._placer.put(weights[name].reshape(stored.shape), stored.specs(rows.ways)))
            for name, stored in self._stored.items()
        }
        self._update = Update(context.spec.optimizer, self._placer, self._stored, rows.ways, context.total_steps)
        self._inputs = self._placer.put(keras_inputs(context, context.data.train_inputs))
        self._targets = self._placer.put(context.data.train_targets)
        # The step's number within its epoch. DTensor takes a small argument for a constant and compiles again when it
        # changes, so the function counts for itself.
        self._number = dtensor.DVariable(self._placer.put(np.int64(0)))
        self._train = tf.function(self._several, autograph=False)
        self._test_batch = tf.function(self._loss_and_correct, autograph=False)
        self._order, self._losses = None, []

    def start_epoch(self, epoch: int) -> None:
        """The epoch's indices go to the devices once, to each those of its samples: steps, their passes, samples."""
        order = self._context.order.epoch(epoch)
        by_pass = order.reshape(len(order), self._context.spec.accumulation, -1)
        self._order = self._placer.put(by_pass, [WHOLE, WHOLE, BATCH])
        self._number.assign(self._placer.put(np.int64(0)))
        self._losses = []

    def step(self, first: int, count: int) -> None:
        """One call of the traced function."""
        losses = self._train(self._order, count)
        self._losses.append(dtensor.unpack(losses)[0])

    def _several(self, order: tf.Tensor, count: int) -> tf.Tensor:
        return tf.stack([self._once(order) for _ in range(count)])

    def _once(self, order: tf.Tensor) -> tf.Tensor:
        """Forward, backward, update; sums over the mesh come with the mean and the products."""
        with tf.name_scope(INPUT):
            number = self._number.read_value()
            self._number.assign(number + 1)
            rows = tf.gather(order, number)
        arrays = {name: variable.read_value() for name, variable in self._arrays.items()}
        loss, gradients = self._passes(arrays, rows)
        with tf.name_scope(UPDATE):
            if (most := self._context.spec.clip) is not None:
                squares = [tf.reduce_sum(tf.square(gradient)) for gradient in gradients.values()]
                factor = clip_factor(tf.sqrt(tf.add_n(squares)), most)
                gradients = {name: gradient * factor for name, gradient in gradients.items()}
            self._update(self._arrays, gradients)
        return loss

    def _passes(self, arrays: dict[str, tf.Tensor], rows: tf.Tensor) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Loss and gradients, added up over passes of which each waits for the one before."""
        passes = self._context.spec.accumulation
        loss, gradients = self._pass(arrays, rows[0], passes)
        for number in range(1, passes):
            with tf.control_dependencies([*gradients.values(), loss]):
                more, added = self._pass(arrays, tf.identity(rows[number]), passes)
            loss, gradients = loss + more, {name: gradient + added[name] for name, gradient in gradients.items()}
        return loss, gradients

    def _pass(
        self, arrays: dict[str, tf.Tensor], index: tf.Tensor, passes: int
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        with tf.name_scope(INPUT):
            inputs, targets = tf.gather(self._inputs, index), tf.gather(self._targets, index)
        with tf.GradientTape() as tape:
            tape.watch(list(arrays.values()))
            loss = _cross_entropy(self._network(arrays, inputs, divided=True), targets) / passes
        by_array = tape.gradient(loss, arrays)
        return loss, {name: tf.convert_to_tensor(gradient) for name, gradient in by_array.items()}

    def _test(self, inputs: tf.Tensor, targets: tf.Tensor) -> tuple[float, int, int, dict[str, float]]:
        """The same batch on every device: its size need not divide."""
        loss, right = self._test_batch(self._placer.put(inputs.numpy()), self._placer.put(targets.numpy()))
        return float(dtensor.unpack(loss)[0]), int(dtensor.unpack(right)[0]), math.prod(targets.shape), {}

    def _loss_and_correct(self, inputs: tf.Tensor, targets: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        arrays = {name: variable.read_value() for name, variable in self._arrays.items()}
        outputs = self._network(arrays, inputs, divided=False)
        right = tf.cast(tf.argmax(outputs, -1) == targets, tf.int64)
        return _cross_entropy(outputs, targets), tf.reduce_sum(right)

    def checkpoint(self) -> TfCheckpoint:
        """All arrays and what the optimizer keeps of them, of which the devices have parts."""
        return DtensorCheckpoint("rank-0", [*self._arrays.values(), *self._update.variables])

    def weights(self) -> Weights:
        """Put together from all devices."""
        return {
            name: _whole(self._placer, self._arrays[name], stored).reshape(stored.neutral)
            for name, stored in self._stored.items()
        }

    def details(self) -> dict[str, Any]:
        """Thread pools, the mesh, how each array lies on it, and the bytes that its devices hold."""
        threading = tf.config.threading
        return {
            "intra_threads": threading.get_intra_op_parallelism_threads(),
            "inter_threads": threading.get_inter_op_parallelism_threads(),
            "mesh": {BATCH: self._rows.count, MODEL: self._rows.ways},
            "samples_each": [math.prod(part.shape[1:]) for part in dtensor.unpack(self._order)],
            "layouts": {name: _parts(variable) for name, variable in self._arrays.items()},
            "steps_per_execution": self.stride,
            "tensorflow": tf.__version__,
            "held_bytes": {
                "parameters": _held_bytes(list(self._arrays.values())),
                "optimizer": _held_bytes(self._update.variables),
            },
        }


def _cross_entropy(outputs: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(targets, outputs))


def _components(variable: dtensor.DVariable) -> list[tf.Tensor]:
    """What each device of the mesh has of it."""
    return list(dtensor.unpack(variable.read_value()))


def _parts(variable: dtensor.DVariable) -> dict[str, Any]:
    parts = _components(variable)
    return {
        "specs": list(dtensor.fetch_layout(variable).sharding_specs),
        "shapes": [list(part.shape) for part in parts],
        "devices": [part.device for part in parts],
    }


def _held_bytes(variables: list[dtensor.DVariable]) -> int:
    parts = [part for variable in variables for part in _components(variable)]
    return sum(part.dtype.size * math.prod(part.shape) for part in parts)


def _whole(placer: Placer, variable: dtensor.DVariable, stored: StoredArray) -> np.ndarray:
    everywhere = dtensor.Layout.replicated(placer.mesh, len(stored.shape))
    return np.asarray(dtensor.unpack(dtensor.relayout(variable.read_value(), everywhere))[0])


class InstrumentedDtensorJob(DtensorJob):
    """The same training, watched by TensorFlow's profiler; what the devices did goes onto the recorder at the end."""

    def __init__(self, context: Context, rows: Rows) -> None:
        super().__init__(context, rows, stride=1)
        assert context.recorder is not None
        self._recorder, self._began = context.recorder, list[int]()
        self._folder = tempfile.TemporaryDirectory(prefix="paceline-profile-")
        options = tf.profiler.experimental.ProfilerOptions(host_tracer_level=OPERATIONS, python_tracer_level=0)
        tf.profiler.experimental.start(self._folder.name, options)
        self._recorder.at_end.append(self._add_spans)

    def step(self, first: int, count: int) -> None:
        """Marked for the profiler, so that its clock can be brought to the recorder's."""
        self._began.append(perf_counter_ns())
        with tf.profiler.experimental.Trace(STEP):
            super().step(first, count)

    def _add_spans(self) -> None:
        # A step is over when the first device has its loss; what others still do belongs to the last one.
        for part in dtensor.unpack(self._number.read_value()):
            part.numpy()
        tf.profiler.experimental.stop()
        with self._folder as folder:
            events = [event for file in sorted(Path(folder).rglob("*.xplane.pb")) for event in read_events(file)]
        ahead = clock_ahead(self._began, [event.start for event in events if event.name == STEP])
        operations_run = executed(events, ahead)
        operations = operations_of({operation.name for operation in operations_run}, collectives_of(_functions()))
        add_operation_spans(self._recorder, operations_run, operations, list(range(self._context.spec.workers)))


def _functions() -> list[object]:
    """All that TensorFlow has in this process, among them those that DTensor made of ours, one for all devices."""
    from tensorflow.python.eager import context as eager

    known = eager.context()
    return [known.get_function_def(name) for name in known.list_function_names()]


def dtensor_job(context: Context, rows: Rows, stride: int) -> DtensorJob:
    """The usual job; in an instrumented run, one that is watched step by step."""
    return DtensorJob(context, rows, stride) if context.recorder is None else InstrumentedDtensorJob(context, rows)
