"""Keras' `fit` taken apart for instrumented runs: its loop, its input and its callbacks, around passes in turn.

Keras asks a function of its model for each batch; here that is one which takes the batch from Keras' iterator, then
makes the passes, the sum and the update one after another. A step goes from the end of one batch to the end of the
next, so that what Keras does between them is in it.
"""

import math
from time import perf_counter_ns
from typing import Any

import tensorflow as tf

from paceline.contract.context import Context
from paceline.frameworks.tensorflow.instrumentation import InstrumentedTfJob
from paceline.spans import Span
from paceline.strategies.tensorflow.mirrored.fit import FitJob, Turns

# An instrumented run makes fewer, in as many epochs as they need, however many the run itself is of.
ENOUGH_STEPS = 64


def fit_job(context: Context, strategy: tf.distribute.Strategy, devices: list[str]) -> FitJob:
    """The usual job; in an instrumented run, one whose batches are noted."""
    return (FitJob if context.recorder is None else InstrumentedFitJob)(context, strategy, devices)


class InstrumentedTurns(Turns):
    """Also keeps when each batch ended; is told its loss, and no mean."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[Span] = []
        self._since = 0

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Its turn is where the first batch begins."""
        super().on_epoch_begin(epoch, logs)
        self._since = perf_counter_ns()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """One more step."""
        self._keep(batch, float((logs or {})["loss"]))
        step = Span("step", f"step {batch + 1}", self._since, perf_counter_ns())
        self.steps.append(step)
        self._since = step.end


class InstrumentedFitJob(FitJob, InstrumentedTfJob):
    """The same training, slower, with everything on the recorder."""

    turns = InstrumentedTurns
    _turns: InstrumentedTurns

    def __init__(self, context: Context, strategy: tf.distribute.Strategy, devices: list[str]) -> None:
        self._next = tf.function(_taken_from, autograph=False)
        super().__init__(context, strategy, devices)
        self._recorder.at_end.append(self._tell)

    def _fit(self) -> None:
        self._model.train_function = self._train_on_next
        super()._fit()

    def _epochs(self) -> list[int]:
        return list(range(math.ceil(ENOUGH_STEPS / self._context.order.steps_per_epoch)))

    def _train_on_next(self, iterator: Any) -> dict[str, tf.Tensor]:
        with self._recorder.span("input"):
            inputs, targets = self._next(iterator)
        return {"loss": self._train_on(inputs, targets)[0]}

    def _tell(self) -> None:
        """Its steps in the place of epochs."""
        self._recorder.spans[:] = [span for span in self._recorder.spans if span.kind != "step"] + self._turns.steps


def _taken_from(iterator: Any) -> Any:
    return next(iterator)
