"""The shares of `tf-ps` taken apart for instrumented runs: batch, fetch, forward, backward and push in turn.

A share is one function that TensorFlow's server runs at the chief's word, where no Python can look. So the function
itself asks for the time between its stages, which control dependencies put in order, and the times come back with the
loss. Nothing overlaps here: all variables are fetched before the forward pass, and no gradient leaves before the last.
The servers' update is within the push. As in a timed run, workers go on while the chief hands out more.
"""

import math
from collections import deque
from collections.abc import Sequence
from time import perf_counter_ns, time_ns
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from paceline.contract.context import Context
from paceline.strategies.tensorflow.ps.job import Chief
from paceline.strategies.tensorflow.ps.shares import Share, add_share_spans

# What an answer has before its times: loss, who it was, staleness.
PLAIN = 3
NANOSECONDS = 1e9
CLOCK_ROUNDS = 9


def chief_job(context: Context, servers: int, ahead: int, stride: int) -> Chief:
    """The usual chief; in an instrumented run, one whose workers tell the times."""
    kind = Chief if context.recorder is None else InstrumentedChief
    return kind(context, servers, ahead, stride)


class InstrumentedChief(Chief):
    """The same training, slower, with every worker's shares on the recorder."""

    def __init__(self, context: Context, servers: int, ahead: int, stride: int) -> None:
        super().__init__(context, servers, ahead, stride)
        assert context.recorder is not None
        self._recorder, self._timed_answers = context.recorder, list[tuple[int, int, np.ndarray]]()
        self._moments: deque[int] = deque()
        self._recorder.at_end.append(self._add_spans)

    def step(self, first: int, count: int) -> None:
        """Also keeps when the step was handed out."""
        self._moments.append(perf_counter_ns())
        super().step(first, count)

    def wait(self) -> None:
        """Does nothing: to wait after each step would make workers stand still as they never do."""

    def losses(self) -> list[float]:
        """Waits for all shares, then gives their losses."""
        super().wait()
        return super().losses()

    def _keep(self, answers: np.ndarray) -> None:
        moment = self._moments.popleft()
        self._timed_answers += [(int(answer[1]), moment, answer[PLAIN:]) for share in answers for answer in share]
        super()._keep(answers[:, :, :PLAIN])

    def _add_spans(self) -> None:
        ahead = _epoch_ahead()
        # Workers come after the chief, as ranks go.
        shares = [
            Share(1 + worker, moment, tuple(round(stamp * NANOSECONDS) - ahead for stamp in stamps))
            for worker, moment, stamps in self._timed_answers
        ]
        add_share_spans(
            self._recorder, shares, {"fetch": _bytes(self._model.variables), "push": _bytes(self._variables)}
        )

    def _train_on(self, order: tf.Tensor) -> tf.Tensor:
        answers: list[tf.Tensor] = []
        for number in range(order.shape[0]):
            with tf.control_dependencies(answers[-1:]):
                answers.append(self._timed_share(order[number]))
        return tf.stack(answers)

    def _timed_share(self, index: tf.Tensor) -> tf.Tensor:
        """The usual answer, with the time of the start and of each stage's end."""
        stamps, held = [tf.timestamp()], self._model.variables
        with tf.control_dependencies(stamps):
            # TensorFlow lets what reads a worker's own variable off the dependency, but not off its other inputs.
            inputs, targets = self._batch(_copy(index))
        stamps.append(_time_after([inputs, targets]))
        with tf.control_dependencies(stamps[-1:]):
            fetched, *copies = (_copy(variable) for variable in (self._version, *(each.value for each in held)))
        stamps.append(_time_after([fetched, *copies]))
        copy_of = {id(variable): copy for variable, copy in zip(held, copies, strict=True)}
        sources = [copy_of[id(variable)] for variable in self._variables]
        with tf.control_dependencies(stamps[-1:]), tf.GradientTape() as tape:
            tape.watch(sources)
            loss, changed = self._forward(list(zip(held, copies, strict=True)), _copy(inputs), _copy(targets))
        stamps.append(_time_after([loss]))
        with tf.control_dependencies(stamps[-1:]):
            raw = tape.gradient(loss, sources)
            gradients = [None if gradient is None else tf.convert_to_tensor(gradient) for gradient in raw]
        stamps.append(_time_after([gradient for gradient in gradients if gradient is not None]))
        with tf.control_dependencies(stamps[-1:]):
            leaving = [None if gradient is None else _copy(gradient) for gradient in gradients]
            settled = [(variable, _copy(value)) for variable, value in changed]
        counted, pushed = self._pushed(leaving, settled)
        stamps.append(_time_after(pushed))
        worker = tf.distribute.coordinator.experimental_get_current_worker_index()
        return tf.stack([tf.cast(value, tf.float64) for value in (loss, worker, counted - fetched, *stamps)])

    def _forward(self, copies: list[tuple[Any, Any]], inputs: tf.Tensor, targets: tf.Tensor) -> tuple[Any, list[Any]]:
        """The loss by copies of all variables, and what the pass would have made of those that no gradient changes."""
        with keras.StatelessScope(copies, collect_losses=True) as scope:
            before = {id(variable): scope.get_current_value(variable) for variable, _ in copies}
            loss = self._penalised_loss(inputs, targets)
        now = [(variable, scope.get_current_value(variable)) for variable in self._model.non_trainable_variables]
        return loss, [(variable, value) for variable, value in now if value is not before[id(variable)]]

    def _pushed(
        self, gradients: list[tf.Tensor | None], changed: list[tuple[Any, tf.Tensor]]
    ) -> tuple[tf.Tensor, list[tf.Operation]]:
        """How many updates there were, and all that must be done before this one is."""
        graph = tf.compat.v1.get_default_graph()
        before = len(graph.get_operations())
        with tf.control_dependencies([gradient for gradient in gradients if gradient is not None]):
            self._push(gradients)
            for variable, value in changed:
                variable.assign(value)
            counted, _ = self._count()
        return counted, [operation for operation in graph.get_operations()[before:] if operation.op_def.is_stateful]


def _time_after(done: Sequence[tf.Tensor | tf.Operation]) -> tf.Tensor:
    with tf.control_dependencies(done):
        return tf.timestamp()


def _copy(value: Any) -> tf.Tensor:
    """Copies a value on the worker, in order; TensorFlow might drop an identity from the graph and lose the order."""
    return tf.raw_ops.Snapshot(input=tf.convert_to_tensor(value))


def _bytes(variables: Sequence[keras.Variable]) -> int:
    return sum(variable.value.dtype.size * math.prod(variable.shape) for variable in variables)


def _epoch_ahead() -> int:
    """Nanoseconds from the recorder's clock to that of TensorFlow's times, by the least disturbed of several looks."""
    looks = [(perf_counter_ns(), time_ns(), perf_counter_ns()) for _ in range(CLOCK_ROUNDS)]
    before, epoch, after = min(looks, key=lambda look: look[2] - look[0])
    return epoch - (before + after) // 2
