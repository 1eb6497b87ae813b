"""Something done between two steps, with all that the device still computes left to the steps before."""

from collections.abc import Callable
from time import process_time

from paceline.contract.job import Job


def between_steps(job: Job, act: Callable[[], None]) -> tuple[int, float]:
    """Does something; gives the nanoseconds by the job's clock and the CPU seconds that it took."""
    # What the device is still computing belongs to the steps.
    job.wait()
    began, cpu_began = job.clock(), process_time()
    act()
    cpu_seconds = process_time() - cpu_began
    return job.clock() - began, cpu_seconds
