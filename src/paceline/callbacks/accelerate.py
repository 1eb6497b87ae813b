"""The steps of Accelerate: `Accelerator(log_with=paceline.callbacks.accelerate_tracker())`."""

from typing import Any

from paceline.callbacks.steps import current_log


def accelerate_tracker(samples: int | None = None) -> Any:
    """A `GeneralTracker` to which each `accelerator.log(...)` is a step of so many samples in this process.

    Where steps are numbered (`accelerator.log(values, step=n)`), a number that comes again is no further step, and one
    that is larger by several counts as that many.
    """
    from accelerate.tracking import GeneralTracker

    class StepTracker(GeneralTracker):
        """Notes when something was logged, on every process, and keeps nothing of what."""

        name = "paceline"
        requires_logging_directory = False
        main_process_only = False

        @property
        def tracker(self) -> None:
            """Nothing beyond this object."""
            return None

        def store_init_configuration(self, _values: dict[str, Any]) -> None:
            """Settings stay with the script."""

        _number: int | None = None

        def log(self, _values: dict[str, Any], step: int | None = None, **_: Any) -> None:
            """A step ends; the first has no beginning and begins the epoch."""
            log, last = current_log(), self._number
            self._number = step
            if log is None or (step is not None and step == last):
                return
            if "callback" not in log.epochs or (step is not None and last is not None and step < last):
                log.begin_epoch("callback")
            else:
                steps = 1 if step is None or last is None else step - last
                log.end_step("callback", None if samples is None else samples * steps)

    return StepTracker()
