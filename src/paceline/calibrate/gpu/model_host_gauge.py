"""How long a host takes to launch a whole step of a given model: its steps with so few samples that the GPU waits."""

import time

from paceline.calibrate.gpu.messages import ModelHostTiming
from paceline.calibrate.gpu.operations_gauge import Measuring
from paceline.contract.context import Context, Process, Rendezvous
from paceline.contract.job import Service
from paceline.spec import RunSpec
from paceline.strategies import strategy

SETTLING_STEPS, STEPS, ROUNDS = 6, 8, 3


def model_host_timings(measuring: Measuring) -> list[ModelHostTiming]:
    """The host's seconds in each precision; a step that fails leaves its reason."""
    timings = []
    for spec in measuring.request.host_steps:
        measuring.tell(f"timing the host: {spec.workload}, {spec.precision}")
        try:
            timings.append(ModelHostTiming(precision=spec.precision, seconds=host_step_seconds(spec)))
        except (
            Exception
        ) as error:  # a model can fail in any way, and the operations of its step were timed all the same
            words = str(error).strip().splitlines() or [type(error).__name__]
            measuring.answer.setdefault("failures", {})[f"host: {spec.workload}, {spec.precision}"] = words[0]
    return timings


def host_step_seconds(spec: RunSpec) -> float:
    """Seconds of a step of that run on one device, the least of some rounds."""
    job = strategy(spec.strategy).open_job(Context(spec, Process(0, 1, "worker", 0, ()), Rendezvous("", 0)))
    assert not isinstance(job, Service)
    job.start_epoch(0)
    job.step(0, SETTLING_STEPS)
    job.wait()
    rounds = []
    for number in range(ROUNDS):
        started = time.perf_counter()
        job.step(SETTLING_STEPS + number * STEPS, STEPS)
        job.wait()
        rounds.append((time.perf_counter() - started) / STEPS)
    job.close()
    return min(rounds)
