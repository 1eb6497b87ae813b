"""The steps of Keras' `fit`: `model.fit(..., callbacks=[paceline.callbacks.keras_callback(batch_size)])`."""

from typing import Any

from paceline.callbacks.steps import current_log


def keras_callback(samples: int | None = None) -> Any:
    """A Keras `Callback` that notes training batches of so many samples each; validation is in none of them."""
    import keras

    class StepCallback(keras.callbacks.Callback):
        """An epoch's last batch may hold fewer samples, which Keras does not say."""

        def on_epoch_begin(self, _epoch: int, logs: Any = None) -> None:
            """An epoch's first step begins with loading its batch."""
            log = current_log()
            if log is not None:
                log.begin_epoch("callback")

        def on_train_batch_end(self, _batch: int, logs: Any = None) -> None:
            """A batch is a step."""
            log = current_log()
            if log is not None:
                log.end_step("callback", samples)

    return StepCallback()
