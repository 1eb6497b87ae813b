"""The training loop of every TensorFlow strategy whose replicas each train on a share of the batch.

Data lie on each replica's device and are gathered by index within the traced step; `tf.distribute` does the rest.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from time import perf_counter_ns
from typing import Any

import keras
import tensorflow as tf

from paceline.contract.context import Context
from paceline.contract.job import Evaluation, InputTimes
from paceline.data.tree import Tree, length, map_tree, take
from paceline.frameworks.host_batches import HostBatches
from paceline.frameworks.keras.model import build_model, export_weights, keras_inputs, loss_function
from paceline.frameworks.keras.optimizer import optimizer_for
from paceline.frameworks.tensorflow.checkpoint import TfCheckpoint
from paceline.frameworks.tensorflow.optimizer import KINDS
from paceline.frameworks.tensorflow.passes import Gradients, clip_sums, in_passes, recompute
from paceline.workloads.base import Weights
from paceline.workloads.outputs import logits_of, loss_in


class TfJob:
    """One process and its replicas, of which each has one of the devices."""

    clock = staticmethod(perf_counter_ns)
    # Updates of a variable in a step: more than one where workers update on their own.
    updates_per_step = 1
    # Of data that are read while it trains: what each replica of this process reads, and what that costs.
    _read: Mapping[int, HostBatches] = {}
    input_times: InputTimes | None = None

    def __init__(
        self,
        context: Context,
        strategy: tf.distribute.Strategy,
        devices: list[str],
        *,
        stride: int = 1,
        replicas: int | None = None,
        barrier: Callable[[], None] = lambda: None,
        leave: Callable[[], None] = lambda: None,
    ) -> None:
        # `replicas` is how many divide a batch in step with each other: all workers, unless they do something else.
        self.stride = stride
        self._context, self._strategy, self._devices = context, strategy, devices
        self._barrier, self._leave = barrier, leave
        expected = context.spec.workers if replicas is None else replicas
        if strategy.num_replicas_in_sync != expected:
            # Each process would then train alone on the whole batch, and the losses would look right.
            raise RuntimeError(f"TensorFlow made {strategy.num_replicas_in_sync} replicas of {expected}")
        with strategy.scope():
            self._model = build_model(context)
            self._optimizer = optimizer_for(context, self._model, KINDS, self.updates_per_step)
        recompute(context, self._model)
        if context.spec.clip is not None:
            clip_sums(self._optimizer, context.spec.clip)
        self._variables = self._model.trainable_variables
        self._loss = loss_function(context, self._model)
        self.input_times = InputTimes() if context.loaded is not None else None
        self._read = self._open_loaded()
        if not self._read:
            self._put_data()
        self._gradients: Gradients = self._loss_and_gradients
        if context.spec.execution == "compiled":
            self._gradients = tf.function(self._loss_and_gradients, autograph=False, jit_compile=True)
        if context.spec.accumulation > 1:
            self._gradients = in_passes(self._gradients, context.spec.accumulation, self._variables)
        self._train = tf.function(self._steps, autograph=False, reduce_retracing=True)
        self._train_on_read = tf.function(self._read_step, autograph=False, reduce_retracing=True)
        self._test = tf.function(self._tested, autograph=False, reduce_retracing=True)
        self._order: Any = None
        self._losses: list[tf.Tensor] = []

    def _put_data(self) -> None:
        """All training data on each device; between CPU devices nothing is copied."""
        context = self._context
        with tf.device("/cpu:0"):
            inputs = map_tree(tf.constant, keras_inputs(context, context.data.train_inputs))
            targets = map_tree(tf.constant, context.data.train_targets)
        self._whole = inputs, targets
        self._inputs, self._targets = (
            map_tree(lambda leaf: self._on_each_device(lambda _replica: leaf), tree) for tree in (inputs, targets)
        )

    def _open_loaded(self) -> dict[int, HostBatches]:
        """For each replica of this process, what it reads while it trains; empty where all data lie on the devices."""
        loaded, times, spec = self._context.loaded, self.input_times, self._context.spec
        if loaded is None or times is None:
            return {}
        replicas = self._strategy.num_replicas_in_sync
        first = self._context.process.index * len(self._devices)
        return {
            replica: HostBatches(loaded, spec, (replica, replicas), times)
            for replica in range(first, first + len(self._devices))
        }

    def _next_batch(self, number: int) -> tuple[Any, Any]:
        """The batch of a step, read here and put where each replica computes."""
        assert self.input_times is not None
        began = perf_counter_ns()
        batches = {replica: self._as_tensors(*share.read(number)) for replica, share in self._read.items()}
        inputs, targets = (
            self._spread({replica: batch[part] for replica, batch in batches.items()}) for part in (0, 1)
        )
        self.input_times.waited += perf_counter_ns() - began
        self.input_times.batches += len(batches)
        return inputs, targets

    def _spread(self, trees: dict[int, Tree]) -> Tree:
        """A tree for each replica as one, whose leaves have a tensor on each device."""

        def put(*tensors: tf.Tensor) -> Any:
            of_replica = dict(zip(trees, tensors, strict=True))
            return self._on_each_device(lambda replica: of_replica[replica])

        return map_tree(put, *trees.values())

    def _as_tensors(self, inputs: Tree, targets: Tree) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.device("/cpu:0"):
            return map_tree(tf.constant, keras_inputs(self._context, inputs)), map_tree(tf.constant, targets)

    def _read_step(self, inputs: Any, targets: Any) -> tf.Tensor:
        losses = self._strategy.run(self._replica_update, args=(inputs, targets))
        local = self._strategy.experimental_local_results(losses)
        return (tf.add_n(local) / len(local))[None]

    def _on_each_device(self, share: Callable[[int], tf.Tensor]) -> Any:
        """A value for each replica, put where that replica computes; between CPU devices nothing is copied."""

        def put(replica: tf.distribute.experimental.ValueContext) -> tf.Tensor:
            number = int(replica.replica_id_in_sync_group)
            value = share(number)
            with tf.device(self._devices[number % len(self._devices)]):
                return tf.identity(value)

        return self._strategy.experimental_distribute_values_from_function(put)

    def align(self) -> None:
        """All processes of the run."""
        self._barrier()

    def start_epoch(self, epoch: int) -> None:
        """The epoch's indices go to the devices once."""
        order, replicas = self._context.order, self._strategy.num_replicas_in_sync
        self._losses = []
        for replica, share in self._read.items():
            share.start_epoch(epoch, None if share.is_stream else order.share(epoch, replica, replicas))
        if self._read:
            return
        self._order = self._on_each_device(lambda replica: tf.constant(order.share(epoch, replica, replicas)))

    def step(self, first: int, count: int) -> None:
        """One call of the traced function."""
        if self._read:
            self._losses += [self._train_on_read(*self._next_batch(number)) for number in range(first, first + count)]
            return
        self._losses.append(self._train(self._order, tf.constant(first, tf.int64), count))

    def _steps(self, order: Any, first: tf.Tensor, count: int) -> tf.Tensor:
        """The mean loss of this process's replicas in each of `count` steps."""
        if count == 1:
            return self._step(order, first)[None]

        def body(done: tf.Tensor, losses: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
            return done + 1, losses.write(tf.cast(done, tf.int32), self._step(order, first + done))

        start = (tf.constant(0, tf.int64), tf.TensorArray(tf.float32, count))
        _, losses = tf.while_loop(lambda done, _: done < count, body, start, parallel_iterations=1)
        return losses.stack()

    def _step(self, order: Any, number: tf.Tensor) -> tf.Tensor:
        losses = self._strategy.run(self._replica_step, args=(self._inputs, self._targets, order, number))
        local = self._strategy.experimental_local_results(losses)
        return tf.add_n(local) / len(local)

    def _replica_step(self, inputs: Tree, targets: Tree, order: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
        """Forward, backward, update; Keras' optimizers sum the gradients over all replicas."""
        index = order[number]
        return self._replica_update(gathered(inputs, index), gathered(targets, index))

    def _replica_update(self, inputs: Tree, targets: Tree) -> tf.Tensor:
        loss, gradients = self._gradients(inputs, targets)
        self._optimizer.apply(gradients, self._variables)
        return loss

    def _loss_and_gradients(self, inputs: Tree, targets: Tree) -> tuple[tf.Tensor, list[tf.Tensor | None]]:
        with tf.GradientTape() as tape:
            loss = self._penalised_loss(inputs, targets)
            share = loss / self._strategy.num_replicas_in_sync
        gradients = tape.gradient(share, self._variables)
        # The rows of an embedding that a batch used come alone; the optimizer and the sum over replicas want all.
        return loss, [None if gradient is None else tf.convert_to_tensor(gradient) for gradient in gradients]

    def _penalised_loss(self, inputs: Tree, targets: Tree) -> tf.Tensor:
        """Penalties that a user's layers put on their weights count as in Keras' own loop."""
        loss = self._loss(self._model(inputs, training=True), targets)
        return tf.add_n([loss, *self._model.losses]) if self._model.losses else loss

    def wait(self) -> None:
        """Waits for GPUs; a traced function on CPU returns when it is done."""
        if self._context.spec.device != "cpu":
            tf.test.experimental.sync_devices()

    def losses(self) -> list[float]:
        """Losses of this process's share of each batch."""
        return [float(loss) for losses in self._losses for loss in losses.numpy()]

    def latest_loss(self) -> float | None:
        """The loss of the last step on cores; a GPU would have to be waited for."""
        return float(self._losses[-1].numpy()[-1]) if self._losses and self._context.spec.device == "cpu" else None

    def evaluate(self) -> Evaluation:
        """The part of the test set that falls to this process."""
        loss_sum, correct, predictions, samples, metrics = 0.0, 0, 0, 0, Counter[str]()
        for inputs, targets in self._test_batches():
            count = length(targets)
            loss, right, looked_at, values = self._test(*self._as_tensors(inputs, targets))
            loss_sum, samples = loss_sum + float(loss) * count, samples + count
            correct, predictions = correct + int(right), predictions + int(looked_at)
            for name, value in values.items():
                metrics[name] += float(value) * count  # type: ignore[assignment]
        return Evaluation(samples, loss_sum, predictions or None, correct if predictions else None, dict(metrics))

    def _test_batches(self) -> Iterator[tuple[Tree, Tree]]:
        """The part of the test set that falls to this process, in batches that all have samples."""
        data, loaded, process = self._context.data, self._context.loaded, self._context.process.index
        for share in self._read.values():
            if share.is_stream:
                yield from share.test_stream()
        total = length(data.test_targets) if loaded is None else loaded.test_samples or 0
        if loaded is not None and not loaded.is_indexed:
            return
        processes = self._strategy.num_replicas_in_sync // len(self._devices)
        begin, end = process * total // processes, (process + 1) * total // processes
        most = data.evaluation_batch
        if loaded is not None:
            most = max(1, min(most, self._context.spec.samples_per_step // self._strategy.num_replicas_in_sync))
        rounds = max(1, math.ceil((end - begin) / most))
        edges = [begin + (end - begin) * number // rounds for number in range(rounds + 1)]
        stretches = [slice(start, stop) for start, stop in pairwise(edges) if start < stop]
        if loaded is not None:
            yield from next(iter(self._read.values())).read_test(stretches)
        else:
            yield from ((take(data.test_inputs, stretch), take(data.test_targets, stretch)) for stretch in stretches)

    def _tested(self, inputs: Tree, targets: Tree) -> tuple[tf.Tensor, Any, Any, dict[str, Any]]:
        """Mean loss, right predictions, predictions and metrics of one batch.

        There are no predictions where targets are no classes, or the loss is the model's or the user's own.
        """
        outputs, user_model = self._outputs(inputs), self._context.model.user_model
        loss, logits = self._loss(outputs, targets), logits_of(outputs)
        metrics = {} if user_model is None else user_model.named_metrics(outputs, targets)
        counts = user_model is None or (user_model.loss is None and loss_in(outputs) is None)
        if not counts or isinstance(targets, dict | tuple) or not targets.dtype.is_integer:
            return loss, 0, 0, metrics
        if logits.shape.rank != targets.shape.rank + 1:
            return loss, 0, 0, metrics
        right = tf.reduce_sum(tf.cast(tf.argmax(logits, -1) == tf.cast(targets, tf.int64), tf.int64))
        return loss, right, tf.size(targets, tf.int64), metrics

    def _outputs(self, inputs: Tree) -> Any:
        """Outputs of the model when it is not training."""
        return self._model(inputs, training=False)

    def weights(self) -> Weights:
        """All weights in the neutral layout."""
        return export_weights(self._context, self._model)

    def checkpoint(self) -> TfCheckpoint:
        """All variables. Of several processes each saves them, as TensorFlow asks: to read them may need all."""
        variables = [*self._model.variables, *self._optimizer.variables]
        return TfCheckpoint(f"rank-{self._context.process.rank}", [variable.value for variable in variables])

    def details(self) -> dict[str, Any]:
        """Thread pools, where the replicas are, and the bytes that their variables hold."""
        threading = tf.config.threading
        return {
            "intra_threads": threading.get_intra_op_parallelism_threads(),
            "inter_threads": threading.get_inter_op_parallelism_threads(),
            "replica_devices": self._devices,
            "variable_devices": [copy.device for copy in self._copies(self._variables[:1])],
            "steps_per_execution": self.stride,
            "tensorflow": tf.__version__,
            "keras": keras.__version__,
            "held_bytes": {
                "parameters": self._held_bytes(self._variables),
                "optimizer": self._held_bytes(self._optimizer.variables),
            },
        }

    def _held_bytes(self, variables: list[keras.Variable]) -> int:
        return sum(copy.dtype.size * math.prod(copy.shape) for copy in self._copies(variables))

    def _copies(self, variables: list[keras.Variable]) -> list[tf.Variable]:
        """All copies of the variables that this process holds."""
        return [copy for variable in variables for copy in self._strategy.experimental_local_results(variable.value)]

    def close(self) -> None:
        """Leaves the other processes."""
        self._leave()


def gathered(tree: Tree, index: tf.Tensor) -> Tree:
    """The samples with these numbers."""
    return map_tree(lambda leaf: tf.gather(leaf, index), tree)
