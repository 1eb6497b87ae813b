"""The steps of Accelerate: `Accelerator(log_with=paceline.callbacks.accelerate_tracker())`."""

from typing import Any

from paceline.callbacks.steps import current_log


def accelerate_tracker(samples: int | None = None) -> Any:
    """A `GeneralTracker` to which each `accelerator.log(...)` is a step of so many samples in this process."""
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

        def log(self, _values: dict[str, Any], step: int | None = None, **_: Any) -> None:
            """A step ends; the first has no beginning and begins the epoch."""
            log = current_log()
            if log is None:
                return
            if "callback" in log.epochs:
                log.end_step("callback", samples)
            else:
                log.begin_epoch("callback")

    return StepTracker()
