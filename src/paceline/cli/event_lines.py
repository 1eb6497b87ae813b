"""Progress for programs: one JSON object per line on standard error (`paceline run --progress json`)."""

import json
import sys
from typing import Any

from paceline.execute import Listener
from paceline.plan import Plan, PlannedRun
from paceline.record import Record
from paceline.runs.wire import EpochEvent, StepEvent


class EventLines(Listener):
    """A listener of `execute` that writes events to standard error and stops the study when nobody reads them."""

    def __enter__(self) -> "EventLines":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def planned(self, plan: Plan) -> None:
        """Writes how many runs there are to make."""
        counts = {"to_run": len(plan.to_run), "stored": plan.done, "skipped": len(plan.skipped)}
        self._write("planned", study=plan.study, **counts)

    def fetching(self, name: str, done_bytes: int, total_bytes: int) -> None:
        """Writes how far a download is."""
        self._write("fetching", dataset=name, done_bytes=done_bytes, total_bytes=total_bytes)

    def started(self, run: PlannedRun, number: int) -> None:
        """Writes which run starts."""
        spec = run.spec
        fields = {"workload": spec.workload, "strategy": spec.strategy, "workers": spec.workers}
        self._write("started", number=number, repeat=run.repeat, key=spec.key(), **fields)

    def event(self, event: StepEvent | EpochEvent) -> None:
        """Writes how far the run is."""
        self._write("progress", **event.model_dump())

    def ended(self, record: Record) -> None:
        """Writes how the run ended."""
        rate = record.steady.samples_per_second if record.steady else None
        fields = {"status": str(record.status), "reason": record.reason, "wall_seconds": record.wall_seconds}
        self._write("ended", key=record.key, samples_per_second=rate, **fields)

    def _write(self, event: str, **fields: Any) -> None:
        try:
            sys.stderr.write(json.dumps({"event": event, **fields}) + "\n")
            sys.stderr.flush()
        except BrokenPipeError:
            # As if Ctrl-C had been pressed: the current run is ended whole and what is done is kept.
            raise KeyboardInterrupt from None
