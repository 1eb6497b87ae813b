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
            # Samples that are left of the epoch in this process; None where the data set does not say.
            self._left: int | None = None

        def on_epoch_begin(self, args: Any, _state: Any, _control: Any, **values: Any) -> None:
            """An epoch's first step begins with loading its batch."""
            log = current_log()
            if log is not None:
                log.begin_epoch("callback")
            self._paused = False
            self._left = _epoch_samples(args, values.get("train_dataloader"))

        def on_step_begin(self, _args: Any, _state: Any, _control: Any, **_: Any) -> None:
            """Goes on after an evaluation or a checkpoint."""
            log = current_log()
            if log is not None and self._paused:
                log.resume("callback")
            self._paused = False

        def on_step_end(self, args: Any, _state: Any, _control: Any, **_: Any) -> None:
            """A step is as many samples as all its passes take in this process; an epoch's last may have fewer."""
            samples = args.train_batch_size * args.gradient_accumulation_steps
            if self._left is not None:
                samples = min(samples, self._left)
                self._left -= samples
            log = current_log()
            if log is not None:
                log.end_step("callback", samples)

        def on_evaluate(self, _args: Any, _state: Any, _control: Any, **_: Any) -> None:
            """What was evaluated is no training."""
            self._paused = True

        def on_save(self, _args: Any, _state: Any, _control: Any, **_: Any) -> None:
            """What was saved is no training."""
            self._paused = True

    return StepCallback()


def _epoch_samples(args: Any, loader: Any) -> int | None:
    """Samples of an epoch in this process. Several processes fill up their last batches, so that all have as many."""
    try:
        return len(loader.dataset) if args.world_size == 1 else len(loader) * args.train_batch_size
    except (AttributeError, TypeError):
        return None
