"""Measurements that lie far outside of what was predicted: which they are, and what may explain them."""

from paceline.recommend.answer import Answer, Candidate
from paceline.systems.hardware import LOCAL
from paceline.units import format_count, format_rate

# One run in ten is outside of a 90 % interval; one that is further from its end than this is worth a word.
FAR = 0.1


def is_unexpected(value: float, low: float, high: float) -> bool:
    """Whether a measured value is far outside of its predicted interval."""
    return not low * (1 - FAR) <= value <= high * (1 + FAR)


def was_unexpected(candidate: Candidate) -> bool:
    """Whether what was measured of a candidate just now is far from its prediction."""
    return candidate.measured is not None and is_unexpected(
        candidate.measured, candidate.value.low, candidate.value.high
    )


def explain_unexpected(answer: Answer, candidate: Candidate) -> str | None:
    """A sentence about a candidate that did otherwise than predicted, now or in stored runs; None if it did not."""
    rate = candidate.prediction.samples_per_second
    earlier = candidate.earlier_samples_per_second
    if candidate.measured is not None:
        if not was_unexpected(candidate):
            return None
        low, high = (answer.objective.text(end) for end in (candidate.value.low, candidate.value.high))
        measured = f"Measured {answer.objective.text(candidate.measured)}"
    elif earlier is not None and is_unexpected(earlier, rate.low, rate.high):
        low, high = (f"{format_rate(end)} samples/s" for end in (rate.low, rate.high))
        measured = f"Earlier runs made {format_rate(earlier)} samples/s"
    else:
        return None
    return f"{measured}, far from the predicted {low} to {high}: {_why(answer, candidate)}."


def _why(answer: Answer, candidate: Candidate) -> str:
    """What is known to put a prediction out, the surest first."""
    hardware, spec = answer.question.hardware, candidate.spec
    if candidate.disturbed:
        return "other programs used the machine during the runs; measure again with --fresh when it is idle"
    if hardware.kind == "cpu" and spec.workers * spec.cores_per_worker > hardware.node_devices:
        return (
            f"{spec.workers} workers share {format_count(hardware.node_devices, 'core')}, which predictions leave out"
        )
    if hardware.name != LOCAL or hardware.calibration is None:
        return f"it is from the description of {hardware.name}, not from this machine; paceline calibrate measures it"
    return (
        f"the calibration of {hardware.calibration.at[:10]} no longer fits this machine or this model; believe the "
        f"measurement, and run paceline calibrate again"
    )
