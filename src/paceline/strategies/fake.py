"""No framework at all: steps that take the time they are told on a clock of their own, and faults on demand.

With it the whole tool (plans, processes, faults, store, tables, report) is tested in seconds, with exact numbers.
"""

import math
import os
import signal
import time
from pathlib import Path
from typing import Any

from paceline.contract.context import Context
from paceline.contract.job import Evaluation, Job
from paceline.contract.strategy import Knob, Needs, Strategy
from paceline.contract.traits import Traits
from paceline.costs.footprint import Footprint, ModelFacts, RankFootprint, training_flops
from paceline.costs.messages import all_reduce
from paceline.errors import UserError
from paceline.spans import Span, SpanRecorder
from paceline.spec import RunSpec
from paceline.workloads.base import Weights

FAULTS = ("none", "fail", "user_error", "out_of_memory", "hang", "kill", "nan", "exit")
KNOBS = (
    Knob("step_ms", 10.0, "milliseconds of computation for the whole global batch on one worker"),
    Knob("send_ms", 1.0, "milliseconds that each step adds when there is more than one worker"),
    Knob("late_ms", 0.0, "milliseconds by which the last worker comes late to each exchange; the others wait"),
    Knob("first_epoch_ms", 0.0, "milliseconds that the first epoch takes longer"),
    Knob("jitter", 0.0, "random part of each step, relative"),
    Knob("fault", "none", "what goes wrong", FAULTS),
    Knob("fault_step", 1, "in which step of the run, counted from 0"),
    Knob("fault_rank", 0, "in which process"),
    Knob("save_ms", 50.0, "milliseconds of a checkpoint"),
    Knob("real_time", False, "sleep through the steps instead of only counting"),
)
SAVED_BYTES = 1_000_000
START_LOSS, LOSS_STEPS, BEST_ACCURACY = 2.3, 40.0, 0.98


class FakeJob:
    """Counts time on a clock of its own."""

    stride = 1

    def __init__(self, context: Context) -> None:
        self._spec, self._rank, self._recorder = context.spec, context.process.rank, context.recorder
        self._knobs = STRATEGY.knob_values(context.spec)
        self._nanoseconds = 0
        self._done = 0
        self._epoch_losses: list[float] = []
        self._random = _Random(context.spec.seed * 1_000_003 + context.process.rank)

    def clock(self) -> int:
        """Nanoseconds of pretended time."""
        return self._nanoseconds

    def align(self) -> None:
        """Pretended clocks are always together."""

    def start_epoch(self, epoch: int) -> None:
        """The first epoch may be slower."""
        self._epoch_losses = []
        if epoch == 0:
            self._pass(float(self._knobs["first_epoch_ms"]))

    def step(self, first: int, count: int) -> None:
        """Lets the told time pass; the fault, if any, happens here."""
        for _ in range(count):
            due = self._done == self._knobs["fault_step"] and self._rank == self._knobs["fault_rank"]
            if due:
                self._go_wrong(str(self._knobs["fault"]))
            per_batch = float(self._knobs["step_ms"])
            share = per_batch / self._spec.workers if self._spec.scaling == "strong" else per_batch
            several = self._spec.workers > 1
            sending = float(self._knobs["send_ms"]) if several else 0.0
            late = float(self._knobs["late_ms"]) if several else 0.0
            if self._recorder is not None:
                self._note(self._recorder, share, late, sending)
            self._pass((share + late + sending) * (1 + float(self._knobs["jitter"]) * self._random.next()))
            self._done += 1
            loss = START_LOSS * math.exp(-self._done / LOSS_STEPS)
            self._epoch_losses.append(math.nan if due and self._knobs["fault"] == "nan" else loss)

    def wait(self) -> None:
        """Nothing runs behind the caller's back."""

    def losses(self) -> list[float]:
        """An exponential."""
        return self._epoch_losses

    def latest_loss(self) -> float | None:
        """The loss of the last step."""
        return self._epoch_losses[-1] if self._epoch_losses else None

    def evaluate(self) -> Evaluation:
        """Accuracy that rises as the loss falls."""
        samples, loss = 1000, START_LOSS * math.exp(-self._done / LOSS_STEPS)
        return Evaluation(samples, loss * samples, samples, round(samples * BEST_ACCURACY * (1 - loss / START_LOSS)))

    def weights(self) -> Weights:
        """No weights: nothing is trained."""
        return {}

    def checkpoint(self) -> "FakeCheckpoint":
        """Each worker pretends to save a part, so that their clocks stay together."""
        return FakeCheckpoint(self)

    def pass_save(self) -> int:
        """Lets the time of a save pass; gives its bytes."""
        self._pass(float(self._knobs["save_ms"]))
        return SAVED_BYTES // self._spec.workers

    def details(self) -> dict[str, Any]:
        """A mark that the times are made up."""
        return {"pretended": True}

    def close(self) -> None:
        """Nothing to leave."""

    def _note(self, recorder: SpanRecorder, share: float, late: float, sending: float) -> None:
        """A third of the computation forward, the rest backward; then an exchange for which all stand still."""
        began = self._nanoseconds
        computing = share + (late if self._rank == self._spec.workers - 1 else 0.0)
        forward, backward, end = (began + round(ms * 1e6) for ms in (share / 3, computing, share + late + sending))
        recorder.add(Span("forward", "forward", began, forward))
        recorder.add(Span("backward", "backward", forward, backward))
        if end > backward:
            match = f"exchange {self._done}"
            recorder.add(Span("communication", "all-reduce", backward, end, track="communication", match=match))
            recorder.add(Span("blocked", "all-reduce", backward, end, match=match))

    def _pass(self, milliseconds: float) -> None:
        self._nanoseconds += round(milliseconds * 1e6)
        if self._knobs["real_time"]:
            time.sleep(milliseconds / 1e3)

    def _go_wrong(self, fault: str) -> None:
        match fault:
            case "fail":
                raise RuntimeError("this run was told to fail")
            case "user_error":
                raise UserError("this run was told that its input is wrong; ask for something else")
            case "out_of_memory":
                raise MemoryError
            case "hang":
                time.sleep(self._spec.timeout_seconds * 100)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "exit":
                os._exit(3)


class FakeCheckpoint:
    """Pretends to save and to load, in the same time."""

    def __init__(self, job: FakeJob) -> None:
        self._job = job

    def save(self, _folder: Path) -> int:
        """Takes the time that it is told."""
        return self._job.pass_save()

    def load(self, _folder: Path) -> None:
        """Takes as long as a save."""
        self._job.pass_save()

    def digest(self) -> str:
        """There is nothing that could change."""
        return ""

    def erase(self) -> None:
        """There is nothing to erase."""


class _Random:
    """A small generator of numbers in 0..1 that needs no import (Lehmer, 1951)."""

    def __init__(self, seed: int) -> None:
        self._state = seed % 2147483646 + 1

    def next(self) -> float:
        self._state = self._state * 48271 % 2147483647
        return self._state / 2147483647


def footprint(spec: RunSpec, model: ModelFacts) -> Footprint:
    """The footprint of a data-parallel strategy with a ring all-reduce."""
    size, flops = model.parameter_bytes, training_flops(model, spec.samples_per_step / spec.workers)
    messages = all_reduce("gradients", size, spec.workers)
    return Footprint((RankFootprint("worker", spec.workers, flops, messages, size, size),))


def open_job(context: Context) -> Job:
    """Opens at once."""
    return FakeJob(context)


STRATEGY = Strategy(
    name="fake",
    family="fake",
    framework=None,
    about="pretends to train: no framework, exact times, faults on demand",
    use_when="trying out Paceline itself",
    footprint=footprint,
    open_job=open_job,
    knobs=KNOBS,
    needs=Needs(devices=("cpu",), heeds=frozenset({"checkpoint_every"})),
    traits=Traits(keeps_own_clock=True),
)
