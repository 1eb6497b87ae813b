"""The steps of a Hugging Face `Trainer`: `Trainer(..., callbacks=[paceline.callbacks.trainer_callback()])`."""

from typing import Any

from paceline.callbacks.steps import current_log


def trainer_callback() -> Any:
    """A `TrainerCallback` that notes optimizer steps with their samples; evaluation and saving are in none of them."""
    from transformers import TrainerCallback

    class StepCallback(TrainerCallback):
        """Begins anew after whatever the trainer does between steps."""

        def __init__(self) -> None:
            self._paused = False

        def on_epoch_begin(self, _args: Any, _state: Any, _control: Any, **_: Any) -> None:
            """An epoch's first step begins with loading its batch."""
            log = current_log()
            if log is not None:
                log.begin_epoch("callback")
            self._paused = False

        def on_step_begin(self, _args: Any, _state: Any, _control: Any, **_: Any) -> None:
            """Goes on after an evaluation or a checkpoint."""
            log = current_log()
            if log is not None and self._paused:
                log.resume("callback")
            self._paused = False

        def on_step_end(self, args: Any, _state: Any, _control: Any, **_: Any) -> None:
            """A step is as many samples as all its passes take in this process."""
            log = current_log()
            if log is not None:
                log.end_step("callback", args.train_batch_size * args.gradient_accumulation_steps)

        def on_evaluate(self, _args: Any, _state: Any, _control: Any, **_: Any) -> None:
            """What was evaluated is no training."""
            self._paused = True

        def on_save(self, _args: Any, _state: Any, _control: Any, **_: Any) -> None:
            """Nor is saving."""
            self._paused = True

    return StepCallback()
