"""How far a predicted step may be off, relatively: by its computation, its transfers, its software and its machine."""

from paceline.costs.footprint import Footprint
from paceline.predict.compute import DATA_SHEET, Passes
from paceline.predict.simulate import combined
from paceline.predict.step_inputs import Parts, StepInputs
from paceline.systems.hardware import Hardware

# Relative deviation of steps that several workers make together, from the held-out runs of `benchmarks/prediction.py`.
TOGETHER = 0.05
# The same where the strategy's software was not timed here.
UNKNOWN_SOFTWARE = 0.15
# The same on slices of one GPU, which share its memory and its host: by errors of an earlier calibration, no less than
# those of today's (docs/accuracy.md).
TOGETHER_ON_SLICES = 0.13
# How far a whole software stack is from what a data sheet says of GPUs: the middle of seven published ones, each by the
# mean of its rows, over what is the middle of normal errors (`published/stacks.py`). No row decided a speed.
UNKNOWN_STACK = 0.14
# Of transfers over a transport that was not measured.
UNMEASURED_TRANSFERS = 0.3


def deviation_of_step(parts: Parts, inputs: StepInputs, footprint: Footprint) -> float:
    """The relative deviation of a step of one system, other software stacks aside."""
    hardware, step = inputs.hardware, parts.step or 1.0
    if (software := hardware.software) is not None:
        work = footprint.groups[0].work
        logged = work is not None and work.block in software.block_factors
        return software.deviation_of(-(-inputs.workers // hardware.node_devices), logged=logged)
    foreign_machine = hardware.uncertainty.value if hardware.measured_elsewhere else 0.0
    computing = inputs.passes.deviation * (parts.compute + parts.bubble) / step
    repeats = hardware.calibrated.repeat_deviation
    if inputs.workers == 1:
        return combined(computing, repeats, foreign_machine)
    known = inputs.costs.residual("all-reduce", inputs.workers)
    known_software = hardware.kind == "cuda" or inputs.overhead is not None
    together = TOGETHER if known_software else UNKNOWN_SOFTWARE
    together = TOGETHER_ON_SLICES if hardware.slices else together
    moving = (UNMEASURED_TRANSFERS if known is None else known) * parts.exposed / step
    return combined(computing, moving, repeats, together, foreign_machine)


def deviation_of_stack(hardware: Hardware, passes: Passes) -> float:
    """What was measured has its programs in it; a data sheet of GPUs says nothing of them."""
    return UNKNOWN_STACK * (hardware.kind == "cuda" and passes.source.startswith(DATA_SHEET))
