"""Stamps of processes on several machines, moved once to the launcher's clock, and whether that is exact enough."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from paceline.contract.context import Process
from paceline.record import Finding
from paceline.runs.wire import ClockOffset, Measurements, RankError, RankResult

# A breakdown compares when ranks came to the same transfer; an error of the clocks above this share of a step would
# show as waiting that was not.
MOST_ERROR_OF_A_STEP = 0.05

Report = RankResult | RankError | None


def on_one_clock(
    reports: Sequence[Report], processes: Sequence[Process], clocks: Sequence[ClockOffset], job_clock: bool
) -> list[Report]:
    """The reports with every stamp on the launcher's clock. `job_clock` says that jobs counted pretended time.

    Clocks are those of the machines that the processes are on, in the order of the machines' numbers.
    """
    if not any(clock.offset for clock in clocks):
        return list(reports)
    numbers = sorted({process.place.machine for process in processes})
    ahead = [clocks[numbers.index(process.place.machine)].offset for process in processes]
    return [_moved(report, offset, job_clock) for report, offset in zip(reports, ahead, strict=True)]


def _moved(report: Report, ahead: int, job_clock: bool) -> Report:
    if report is None:
        return None
    if isinstance(report, RankError):
        return report.model_copy(update={"failed_at": report.failed_at - ahead})
    began = report.start
    moved = {name: getattr(began, name) - ahead for name in ("started", "imported", "opened")}
    return report.model_copy(update={
        "start": began.model_copy(update=moved),
        "measured": report.measured if job_clock else _moved_measurements(report.measured, ahead),
    })  # fmt: skip


def _moved_measurements(measured: Measurements, ahead: int) -> Measurements:
    epochs = [
        epoch.model_copy(update={"stamps": [at - ahead for at in epoch.stamps], "ended": epoch.ended - ahead})
        for epoch in measured.epochs
    ]
    spans = [replace(span, start=span.start - ahead, end=span.end - ahead) for span in measured.spans]
    return measured.model_copy(update={"epochs": epochs, "spans": spans})


def clock_finding(clocks: Sequence[ClockOffset], step_seconds: Sequence[float]) -> Finding | None:
    """Why ranks of different machines cannot be compared within a step; None where they can."""
    error = max((clock.error for clock in clocks), default=0) / 1e9
    if not step_seconds or error <= MOST_ERROR_OF_A_STEP * median(step_seconds):
        return None
    return Finding(
        code="clocks_apart",
        text=f"the clocks of the machines are known to {error * 1e3:.2g} ms and a step takes "
        f"{median(step_seconds) * 1e3:.3g} ms: where the time of each rank went is left out",
        hint="take a workload with longer steps, or machines that answer each other faster",
    )
