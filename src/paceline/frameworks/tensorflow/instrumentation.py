"""TensorFlow's training step taken apart for instrumented runs: batch, passes, sum of gradients and update in turn.

Each is a traced function, which on CPU returns when all replicas of the process are done, so nothing overlaps here.
Fetching variables that lie elsewhere (tf-central) is within the passes; the sum is that of Keras' optimizers.
"""

import math
from typing import Any

import tensorflow as tf

from paceline.contract.context import Context
from paceline.data.tree import Tree
from paceline.frameworks.call_spans import InstrumentedTransfers, forward_share, instrumented_passes
from paceline.frameworks.tensorflow.declared import steps_per_call
from paceline.frameworks.tensorflow.training import TfJob, gathered


def tf_job(context: Context, strategy: tf.distribute.Strategy, devices: list[str], **fields: Any) -> TfJob:
    """The usual job; in an instrumented run, one whose steps are noted."""
    if context.recorder is None:
        return TfJob(context, strategy, devices, stride=steps_per_call(context.spec), **fields)
    return InstrumentedTfJob(context, strategy, devices, **fields)


class InstrumentedTfJob(TfJob):
    """The same training, slower, with everything on the recorder."""

    def __init__(self, context: Context, strategy: tf.distribute.Strategy, devices: list[str], **fields: Any) -> None:
        super().__init__(context, strategy, devices, **fields)
        assert context.recorder is not None
        self._recorder, self._transfers = context.recorder, InstrumentedTransfers(context.recorder)
        self._take = tf.function(self._batch, autograph=False)
        self._look_ahead = tf.function(self._forward, autograph=False)
        self._differentiate = tf.function(self._passes, autograph=False)
        self._update = tf.function(self._updated, autograph=False)
        self._sum: Any = None
        if strategy.num_replicas_in_sync > 1:
            self._sum = tf.function(self._summed, autograph=False)
            self._reduced = self._optimizer._all_reduce_sum_gradients
            # The update gets sums.
            self._optimizer._all_reduce_sum_gradients = lambda pairs: pairs
        # Each replica hands over a gradient as large as each variable.
        self._sum_bytes = len(devices) * sum(_bytes(variable) for variable in self._variables)
        TfJob.start_epoch(self, 0)
        batch = self._next_batch(0) if self._read else self._take(self._order, tf.constant(0, tf.int64))
        self._share = forward_share(lambda: self._look_ahead(*batch), lambda: self._differentiate(*batch))

    def step(self, first: int, count: int) -> None:
        """Each call starts when the one before has ended."""
        for number in range(first, first + count):
            with self._recorder.span("input"):
                if self._read:
                    inputs, targets = self._next_batch(number)
                else:
                    inputs, targets = self._take(self._order, tf.constant(number, tf.int64))
            self._losses.append(self._train_on(inputs, targets))

    def _train_on(self, inputs: Any, targets: Any) -> tf.Tensor:
        """All but the batch, noted; the loss."""
        with instrumented_passes(self._recorder, self._share):
            loss, gradients = self._differentiate(inputs, targets)
        if self._sum is not None:
            with self._transfers("sum of gradients", self._sum_bytes):
                gradients = self._sum(gradients)
        with self._recorder.span("optimizer"):
            self._update(gradients)
        return loss

    def _batch(self, order: Any, number: tf.Tensor) -> Any:
        def take(inputs: Tree, targets: Tree, order: tf.Tensor) -> tuple[Tree, Tree]:
            index = order[number]
            return gathered(inputs, index), gathered(targets, index)

        return self._strategy.run(take, args=(self._inputs, self._targets, order))

    def _forward(self, inputs: Any, targets: Any) -> Any:
        def pass_through(inputs: Tree, targets: Tree) -> tf.Tensor:
            return self._loss(self._model(inputs, training=True), targets)

        jit = self._context.spec.execution == "compiled"
        forward = tf.function(pass_through, autograph=False, jit_compile=True) if jit else pass_through
        return self._strategy.run(forward, args=(inputs, targets))

    def _passes(self, inputs: Any, targets: Any) -> tuple[tf.Tensor, Any]:
        losses, gradients = self._strategy.run(self._gradients, args=(inputs, targets))
        local = self._strategy.experimental_local_results(losses)
        return (tf.add_n(local) / len(local))[None], gradients

    def _summed(self, gradients: Any) -> Any:
        def add_up(gradients: list[tf.Tensor | None]) -> list[tf.Tensor | None]:
            return [
                gradient
                for gradient, _ in self._reduced(list(zip(_made_here(gradients), self._variables, strict=True)))
            ]

        return self._strategy.run(add_up, args=(gradients,))

    def _updated(self, gradients: Any) -> None:
        self._strategy.run(
            lambda gradients: self._optimizer.apply(_made_here(gradients), self._variables), args=(gradients,)
        )


def _bytes(variable: Any) -> int:
    return int(tf.as_dtype(variable.dtype).size * math.prod(variable.shape))


def _made_here(gradients: list[tf.Tensor | None]) -> list[tf.Tensor | None]:
    """TensorFlow finds the device of a gradient by the operation that made it in this function."""
    return [None if gradient is None else tf.identity(gradient) for gradient in gradients]
