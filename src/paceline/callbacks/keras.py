"""The steps of Keras' `fit`: `model.fit(..., callbacks=[paceline.callbacks.keras_callback(batch_size)])`."""

from typing import Any

from paceline.callbacks.steps import current_log


def keras_callback(samples: int | None = None) -> Any:
    """A Keras `Callback` that notes training batches of so many samples each; validation is in none of them."""
    import keras

    class StepCallback(keras.callbacks.Callback):
        """An epoch's last batch may hold fewer samples, which Keras does not say."""

        _first = 0

        def on_epoch_begin(self, _epoch: int, logs: Any = None) -> None:
            """An epoch's first step begins with loading its batch."""
            log = current_log()
            if log is not None:
                log.begin_epoch("callback")

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            """Remembers the first of several batches that are trained on in one call (`steps_per_execution`)."""
            self._first = batch

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            """A call is a step."""
            log = current_log()
            if log is not None:
                log.end_step("callback", None if samples is None else samples * (batch - self._first + 1))

    return StepCallback()
