"""What becomes of the steps of a script while it runs: progress for the user, and spans in an instrumented run."""

from paceline.callbacks.steps import SOURCES, ObservedEpoch, OnStep, Source
from paceline.errors import UserError
from paceline.runs.measure import REPORT_NANOSECONDS, Reporter, is_due
from paceline.runs.wire import StepEvent
from paceline.spans import Span, SpanRecorder
from paceline.spec import RunSpec

# Enough for steady means; later steps are not recorded, however long the script is.
RECORDED_STEPS = 60
_PASSES = ("forward", "backward", "optimizer")


class ReportedSteps:
    """Reports steps as they come, at most a few each second, from the source that says most so far."""

    def __init__(self, spec: RunSpec, report: Reporter) -> None:
        self._report, self._workers, self._samples_per_step = report, spec.workers, spec.samples_per_step
        self._next, self._source = 0, SOURCES[-1]
        # Clock and CPU seconds at the last report.
        self._reported, self._reported_cpu = 0, 0.0

    def __call__(self, source: Source, epoch: ObservedEpoch, number: int) -> None:
        """Takes a step in."""
        now = epoch.stamps[-1] + epoch.paused
        if now < self._next or SOURCES.index(source) > SOURCES.index(self._source):
            return
        if not is_due(now - self._reported, epoch.cpu_ended - self._reported_cpu):
            return
        self._next, self._source = now + REPORT_NANOSECONDS, source
        self._reported, self._reported_cpu = now, epoch.cpu_ended
        samples = epoch.steps * self._samples_per_step if epoch.samples is None else epoch.samples * self._workers
        rate = (samples or epoch.steps) * 1e9 / max(1, epoch.stamps[-1] - epoch.stamps[0])
        self._report(StepEvent(epoch=number, step=epoch.steps, steps=0, samples_per_second=rate))


class InstrumentedSteps:
    """Makes spans of the steps of each source, and closes the recorder when there are enough."""

    def __init__(self, recorder: SpanRecorder, then: OnStep) -> None:
        self._recorder, self._then = recorder, then
        self._steps: dict[Source, list[Span]] = {}

    def on_batch(self, start: int, end: int) -> None:
        """Waiting for a batch is input, whatever the loader is."""
        self._recorder.add(Span("input", "input", start, end))

    def on_step(self, source: Source, epoch: ObservedEpoch, number: int) -> None:
        """A step lasts from the end of the one before, or from where its source began anew."""
        self._then(source, epoch, number)
        if self._recorder.closed:
            return
        steps = self._steps.setdefault(source, [])
        before, end = (stamp + epoch.paused for stamp in epoch.stamps[-2:])
        steps.append(Span("step", f"step {len(steps) + 1}", before, end))
        if len(steps) == RECORDED_STEPS and source == min(self._steps, key=SOURCES.index):
            self._recorder.complete()
            self._recorder.closed = True

    def spans(self, source: Source, script: str) -> list[Span]:
        """All spans, with the steps of that source; refuses where no pass of PyTorch was among them."""
        spans = self._recorder.complete()
        if not any(span.kind in _PASSES for span in spans):
            raise UserError(f"no pass of PyTorch was seen in {script}, so it has no breakdown; leave --breakdown out")
        return [*spans, *self._steps.get(source, [])]
