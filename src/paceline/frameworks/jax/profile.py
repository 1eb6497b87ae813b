"""The compiled JAX step as it is, watched by XLA's profiler: for layers that are divided and send in mid-pass."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import jax
from jax.profiler import ProfileData, ProfileOptions, TraceAnnotation

from paceline.contract.context import Context
from paceline.frameworks.jax.layout import Layout
from paceline.frameworks.jax.optimizer import Tree
from paceline.frameworks.jax.training import JaxJob
from paceline.frameworks.xla_spans import STEP, Executed, add_operation_spans, clock_ahead, operations_of
from paceline.spans import Span


class WholeStepJob(JaxJob):
    """The same training; what the devices did goes onto the recorder when all steps are made."""

    def __init__(self, context: Context, layout: Layout, **fields: Any) -> None:
        super().__init__(context, layout, **fields)
        assert context.recorder is not None
        self._recorder, self._workers = context.recorder, _workers_of(context, layout)
        self._began: list[int] = []
        self._folder = tempfile.TemporaryDirectory(prefix="paceline-profile-")
        self.start_epoch(0)
        self._operations = operations_of(self.program())
        options = ProfileOptions()
        options.python_tracer_level = 0
        jax.profiler.start_trace(self._folder.name, profiler_options=options)
        self._recorder.at_end.append(self._add_spans)

    def step(self, first: int, count: int) -> None:
        """Marked for the profiler, so that its clock can be brought to the recorder's."""
        for number in range(first, first + count):
            self._began.append(perf_counter_ns())
            with TraceAnnotation(STEP):
                super().step(number, 1)

    def _read_batch(self, number: int) -> tuple[Tree, Tree]:
        began = perf_counter_ns()
        batch = super()._read_batch(number)
        for worker in self._workers:
            self._recorder.add(Span("input", "input", began, perf_counter_ns(), worker=worker))
        return batch

    def _add_spans(self) -> None:
        jax.profiler.stop_trace()
        with self._folder as folder:
            files = sorted(Path(folder).rglob("*.xplane.pb"))
            events = [event for file in files for event in _events(ProfileData.from_file(str(file)))]
        ahead = clock_ahead(self._began, [event.start_ns for event in events if event.name == STEP])
        add_operation_spans(self._recorder, _executed(events, ahead), self._operations, self._workers)


def _workers_of(context: Context, layout: Layout) -> list[int]:
    """The numbers of the workers whose devices this process drives."""
    count = len(layout.mesh.local_devices)
    return list(range(context.process.index * count, (context.process.index + 1) * count))


def _events(profile: Any) -> Iterator[Any]:
    for plane in profile.planes:
        for line in plane.lines:
            yield from line.events


def _executed(events: list[Any], ahead: int) -> Iterator[Executed]:
    """Operations; the profiler also tells their ends once more, and what the runtime does between them."""
    for event in events:
        stats = dict(event.stats)
        if "hlo_op" in stats and not event.name.startswith("end: "):
            start = round(event.start_ns) + ahead
            yield Executed(
                str(stats["hlo_op"]), int(stats.get("device_ordinal", 0)), start, start + round(event.duration_ns)
            )
