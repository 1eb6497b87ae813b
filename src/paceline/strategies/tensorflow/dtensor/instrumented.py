"""The step of a DTensor mesh as it is, watched by TensorFlow's profiler: its collectives come in mid-pass."""

import tempfile
from pathlib import Path
from time import perf_counter_ns

import tensorflow as tf
from tensorflow.experimental import dtensor
from tensorflow.python.eager import context as eager

from paceline.contract.context import Context
from paceline.costs.splits import Rows
from paceline.frameworks.xla_spans import STEP, add_operation_spans, clock_ahead
from paceline.strategies.tensorflow.dtensor.job import DtensorJob
from paceline.strategies.tensorflow.dtensor.profile import collectives_of, executed, operations_of, read_events

# The level from which on the profiler tells single operations.
OPERATIONS = 2


def dtensor_job(context: Context, rows: Rows, stride: int) -> DtensorJob:
    """The usual job; in an instrumented run, one that is watched step by step."""
    return DtensorJob(context, rows, stride) if context.recorder is None else InstrumentedDtensorJob(context, rows)


class InstrumentedDtensorJob(DtensorJob):
    """The same training; what the devices did goes onto the recorder when all steps are made."""

    def __init__(self, context: Context, rows: Rows) -> None:
        super().__init__(context, rows, stride=1)
        assert context.recorder is not None
        self._recorder, self._began = context.recorder, list[int]()
        self._folder = tempfile.TemporaryDirectory(prefix="paceline-profile-")
        options = tf.profiler.experimental.ProfilerOptions(host_tracer_level=OPERATIONS, python_tracer_level=0)
        tf.profiler.experimental.start(self._folder.name, options)
        self._recorder.at_end.append(self._add_spans)

    def step(self, first: int, count: int) -> None:
        """Marked for the profiler, so that its clock can be brought to the recorder's."""
        self._began.append(perf_counter_ns())
        with tf.profiler.experimental.Trace(STEP):
            super().step(first, count)

    def _add_spans(self) -> None:
        # A step is over when the first device has its loss; what others still do belongs to the last one.
        for part in dtensor.unpack(self._number.read_value()):
            part.numpy()
        tf.profiler.experimental.stop()
        with self._folder as folder:
            events = [event for file in sorted(Path(folder).rglob("*.xplane.pb")) for event in read_events(file)]
        ahead = clock_ahead(self._began, [event.start for event in events if event.name == STEP])
        operations_run = executed(events, ahead)
        operations = operations_of({operation.name for operation in operations_run}, collectives_of(_functions()))
        add_operation_spans(self._recorder, operations_run, operations, list(range(self._context.spec.workers)))


def _functions() -> list[object]:
    """All that TensorFlow has in this process, among them those that DTensor made of ours, one for all devices."""
    known = eager.context()
    return [known.get_function_def(name) for name in known.list_function_names()]
