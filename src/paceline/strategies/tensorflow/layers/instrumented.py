"""The step of a Keras model in stages, taken apart for instrumented runs: stage after stage, forward and back.

Each call, also a transfer to the next device, ends before the next starts. TensorFlow's kernels for gradients are slow
where the forward pass was another function, so each stage but the last makes it again there, which counts as other.
"""

import math
from functools import partial
from time import perf_counter_ns
from typing import Any

import tensorflow as tf

from paceline.contract.context import Context
from paceline.frameworks.call_spans import InstrumentedTransfers, forward_share, instrumented_passes
from paceline.frameworks.tensorflow.declared import steps_per_call
from paceline.spans import Span
from paceline.strategies.tensorflow.layers.job import LayersJob, Stage


def layers_job(context: Context, microbatches: int) -> LayersJob:
    """The usual job; in an instrumented run, one whose steps are noted one by one."""
    return (
        LayersJob(context, microbatches, steps_per_call(context.spec))
        if context.recorder is None
        else InstrumentedLayersJob(context)
    )


class InstrumentedLayersJob(LayersJob):
    """The same training, slower, with everything on the recorder."""

    def __init__(self, context: Context) -> None:
        super().__init__(context, microbatches=1, stride=1)
        assert context.recorder is not None
        self._recorder, self._transfers = context.recorder, InstrumentedTransfers(context.recorder)
        self._take = tf.function(self._batch, autograph=False)
        self._ahead, self._both, self._updates = (
            [tf.function(partial(function, stage), autograph=False) for stage in self._stages]
            for function in (self._passed, self._gradients_of, _updated)
        )
        self.start_epoch(0)
        self._shares = self._forward_shares(*self._take(self._order, tf.constant(0, tf.int64)))

    def _forward_shares(self, inputs: tf.Tensor, targets: tf.Tensor) -> list[float]:
        """The forward pass's share of both passes, for each stage."""
        shares = []
        for ahead, both in zip(self._ahead, self._both, strict=True):
            outputs = ahead(inputs, targets)
            each = (partial(ahead, inputs, targets), partial(both, inputs, targets, tf.ones_like(outputs[0])))
            shares.append(forward_share(*each))
            inputs = outputs[0]
        return shares

    def step(self, first: int, count: int) -> None:
        """Each call starts when the one before has ended."""
        for number in range(first, first + count):
            with self._recorder.span("input"):
                samples, targets = self._take(self._order, tf.constant(number, tf.int64))
            inputs, penalties = [samples], []
            for ahead, after in zip(self._ahead[:-1], self._stages[1:], strict=True):
                with self._recorder.span("forward"):
                    outputs, *added = ahead(inputs[-1], targets)
                inputs.append(self._sent("activations", outputs, after))
                penalties += added
            with instrumented_passes(self._recorder, self._shares[-1]):
                loss, coming, gradients = self._both[-1](inputs[-1], targets, tf.constant(1.0))
            stage_gradients = [gradients]
            for place in reversed(range(len(self._stages) - 1)):
                coming = self._sent("gradients of activations", coming, self._stages[place])
                coming, gradients = self._back(place, inputs[place], targets, coming)
                stage_gradients.insert(0, gradients)
            with self._recorder.span("optimizer"):
                for update, gradients_here in zip(self._updates, stage_gradients, strict=True):
                    update(gradients_here)
            self._losses.append((loss + sum(penalties))[None])

    def _back(self, place: int, inputs: tf.Tensor, targets: tf.Tensor, coming: tf.Tensor) -> tuple[Any, list[Any]]:
        began = perf_counter_ns()
        _, coming, gradients = self._both[place](inputs, targets, coming)
        ended = perf_counter_ns()
        self._recorder.add(Span("backward", "backward", began + round(self._shares[place] * (ended - began)), ended))
        return coming, gradients

    def _batch(self, order: tf.Tensor, number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        index = order[number]
        return tf.gather(self._inputs, index), tf.gather(self._targets, index)

    def _passed(self, stage: Stage, inputs: tf.Tensor, targets: tf.Tensor) -> list[tf.Tensor]:
        """What it made, then its penalties; of the last stage the loss with them."""
        with tf.device(stage.device):
            outputs = stage.layers(inputs, training=True)
            penalties = list(stage.layers.losses)
            last = stage is self._stages[-1]
            return [tf.add_n([self._loss(outputs, targets), *penalties])] if last else [outputs, *penalties]

    def _gradients_of(
        self, stage: Stage, inputs: tf.Tensor, targets: tf.Tensor, coming: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor | None, list[Any]]:
        """What the stage makes, the gradient of what it is given, and those of its variables."""
        first = stage is self._stages[0]
        with tf.device(stage.device):
            with tf.GradientTape() as tape:
                if not first:
                    tape.watch(inputs)
                outputs = self._passed(stage, inputs, targets)
            sources = stage.layers.trainable_variables + ([] if first else [inputs])
            weights = [coming, *map(tf.ones_like, outputs[1:])]
            raw = tape.gradient(outputs, sources, output_gradients=weights)
            dense = [None if gradient is None else tf.convert_to_tensor(gradient) for gradient in raw]
        return outputs[0], None if first else dense.pop(), dense

    def _sent(self, name: str, value: tf.Tensor, to: Stage) -> tf.Tensor:
        with self._transfers(name, value.dtype.size * math.prod(value.shape)), tf.device(to.device):
            return tf.identity(value)


def _updated(stage: Stage, gradients: list[Any]) -> None:
    if stage.optimizer is not None:
        with tf.device(stage.device):
            stage.optimizer.apply(gradients, stage.layers.trainable_variables)
