"""The steps of a Lightning `Trainer`: `Trainer(..., callbacks=[paceline.callbacks.lightning_callback()])`."""

import sys
from typing import Any

from paceline.callbacks.steps import batch_length, current_log


def lightning_callback() -> Any:
    """A Lightning `Callback` that notes training batches with their samples; validation is in none of them."""
    # The same classes under two names; a script that uses one must not get those of the other.
    if "lightning" in sys.modules or "pytorch_lightning" not in sys.modules:
        from lightning.pytorch import Callback
    else:
        from pytorch_lightning import Callback

    class StepCallback(Callback):
        """Begins anew after each validation."""

        def __init__(self) -> None:
            super().__init__()
            self._paused = False

        def on_train_epoch_start(self, _trainer: Any, _module: Any) -> None:
            """An epoch's first step begins with loading its batch."""
            log = current_log()
            if log is not None:
                log.begin_epoch("callback")
            self._paused = False

        def on_train_batch_start(self, _trainer: Any, _module: Any, _batch: Any, _number: int) -> None:
            """Goes on after a validation in the middle of an epoch."""
            log = current_log()
            if log is not None and self._paused:
                log.resume("callback")
            self._paused = False

        def on_train_batch_end(self, _trainer: Any, _module: Any, _outputs: Any, batch: Any, _number: int) -> None:
            """A batch is a step, also where gradients are accumulated over several."""
            log = current_log()
            if log is not None:
                log.end_step("callback", batch_length(batch))

        def on_validation_start(self, _trainer: Any, _module: Any) -> None:
            """What is validated is no training."""
            self._paused = True

    return StepCallback()
