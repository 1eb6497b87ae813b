"""Training through Keras' `fit`, on the same batches in the same order as a loop of one's own.

One call, in a thread that waits between epochs, makes the whole training, because each call builds its input anew. Data
come as most scripts bring them: a `tf.data` pipeline of global batches, which Keras divides over the replicas.
"""

import math
import threading
from queue import SimpleQueue
from time import perf_counter_ns
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from paceline.contract.context import Context
from paceline.frameworks.tensorflow.instrumentation import InstrumentedTfJob
from paceline.frameworks.tensorflow.training import TfJob
from paceline.spans import Span

# Keras tells the mean loss since its metrics were reset. Each batch's own is the difference of two such sums, which
# loses precision as they grow; resetting before every batch costs more than it helps.
RESET_EVERY = 32
# An instrumented run makes fewer steps, in as many epochs as they need, however many the run itself is of.
ENOUGH_STEPS = 64


class Turns(keras.callbacks.Callback):
    """Holds `fit` before each epoch until it is asked for, and keeps the loss of every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []
        # Steps wanted of the next epoch; and what came of it: None, or the error that ended `fit`.
        self.wanted: SimpleQueue[int] = SimpleQueue()
        self.finished: SimpleQueue[BaseException | None] = SimpleQueue()
        self._steps, self._sum = 0, 0.0

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Waits for its turn."""
        self.finished.put(None)
        self._steps, self.losses = self.wanted.get(), []

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Starts the sum afresh now and then."""
        if batch % RESET_EVERY == 0:
            self.model.reset_metrics()
            self._sum = 0.0

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Takes what Keras tells apart."""
        total = float((logs or {})["loss"]) * (batch % RESET_EVERY + 1)
        self._keep(batch, total - self._sum)
        self._sum = total

    def _keep(self, batch: int, loss: float) -> None:
        """Also ends `fit` where no more steps are wanted."""
        self.losses.append(loss)
        if batch + 1 == self._steps:
            self.model.stop_training = self._steps < self.params["steps"]


class FitJob(TfJob):
    """An epoch per call, so that the times of single steps are not known; their losses are."""

    turns: type[Turns] = Turns

    def __init__(self, context: Context, strategy: tf.distribute.Strategy, devices: list[str]) -> None:
        super().__init__(context, strategy, devices, stride=context.order.steps_per_epoch)
        integers = context.data.train_targets.dtype.kind in "iub"

        def loss(targets: Any, outputs: Any) -> Any:
            # Keras hands targets over as floats. It divides a loss by the number of replicas only if that is no scalar;
            # a scalar gives gradients that are too large by as much, and says nothing.
            return self._loss(outputs, tf.cast(targets, tf.int64) if integers else targets)[None]

        with strategy.scope():
            compiled = context.spec.execution == "compiled"
            self._model.compile(optimizer=self._optimizer, loss=loss, jit_compile=compiled)
        self._turns = self.turns()
        threading.Thread(target=self._fit, daemon=True).start()
        self._wait_for_turn()

    def _fit(self) -> None:
        order, epochs = self._context.order, self._epochs()
        rows = tf.data.Dataset.from_tensor_slices(np.concatenate([order.epoch(epoch) for epoch in epochs]))
        try:
            self._model.fit(
                # What AutoGraph writes for a function lies in the temporary folder until its process ends by itself.
                rows.map(tf.autograph.experimental.do_not_convert(self._row)).repeat().prefetch(1),
                epochs=len(epochs),
                steps_per_epoch=order.steps_per_epoch,
                verbose=0,
                callbacks=[self._turns],
            )
        except BaseException as error:  # it belongs to whoever waits for the epoch
            self._turns.finished.put(error)
        else:
            self._turns.finished.put(None)

    def _epochs(self) -> list[int]:
        spec = self._context.spec
        return [epoch for epoch, _ in self._context.order.schedule(spec.epochs, spec.steps)]

    def _row(self, index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        inputs, targets = self._whole
        return tf.gather(inputs, index), tf.gather(targets, index)

    def _wait_for_turn(self) -> None:
        error = self._turns.finished.get()
        if error is not None:
            raise error

    def start_epoch(self, epoch: int) -> None:
        """`fit` has all epochs already."""

    def step(self, first: int, count: int) -> None:
        """Lets `fit` make its next epoch."""
        self._turns.wanted.put(count)
        self._wait_for_turn()

    def losses(self) -> list[float]:
        """Losses as Keras reports them."""
        return self._turns.losses

    def details(self) -> dict[str, Any]:
        """A call is an epoch."""
        return {**super().details(), "steps_per_execution": 1, "loop": "fit"}


class InstrumentedTurns(Turns):
    """Also keeps when each batch ended; is told its loss, and no mean."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[Span] = []
        self._since = 0

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Notes where the first batch begins."""
        super().on_epoch_begin(epoch, logs)
        self._since = perf_counter_ns()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """One more step."""
        self._keep(batch, float((logs or {})["loss"]))
        step = Span("step", f"step {batch + 1}", self._since, perf_counter_ns())
        self.steps.append(step)
        self._since = step.end


class InstrumentedFitJob(FitJob, InstrumentedTfJob):
    """The same training, slower, with everything on the recorder.

    For each batch Keras calls a function that takes it and makes passes, sum and update one after another. A step goes
    from the end of one batch to the end of the next, so that what Keras does between them is in it.
    """

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
        """Puts the steps that were noted in the place of those of whole epochs."""
        self._recorder.spans[:] = [span for span in self._recorder.spans if span.kind != "step"] + self._turns.steps


def _taken_from(iterator: Any) -> Any:
    return next(iterator)


def fit_job(context: Context, strategy: tf.distribute.Strategy, devices: list[str]) -> FitJob:
    """The usual job; in an instrumented run, one whose batches are noted."""
    return (FitJob if context.recorder is None else InstrumentedFitJob)(context, strategy, devices)
