"""Measures this machine ─► a system in numbers: operations, steps of a workload, collectives.

Runs go through the launcher as any other. Seconds of computation are CPU seconds where other programs disturbed the
wall clock; one worker on one core uses as many of either when nothing does.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from statistics import mean
from typing import Any

from paceline.calibrate.fit import ModelTiming, crowding_by_kind, with_operations, within_models
from paceline.calibrate.gauge import Gauge, gauging
from paceline.calibrate.gpu.messages import TimedOperation
from paceline.calibrate.journal import Journal
from paceline.calibrate.measurements import (
    deviation_of_a_run,
    layer_scratch,
    one_worker_seconds,
    slowest_of_each_step,
    timed_operations,
    transfer_curve,
)
from paceline.calibrate.memory import MeasuredPeak, fit_memory, fit_scratch
from paceline.calibrate.overheads import strategy_overheads
from paceline.calibrate.phases import Phases, Say
from paceline.calibrate.trials import TRIALS, Trial, run_trials, run_workload, trial_runs, with_samples, workload_runs
from paceline.contract.context import Process, spec_facts
from paceline.costs.footprint import ModelFacts
from paceline.errors import UserError
from paceline.plan import PlannedRun
from paceline.predict.compute import Compute, model_digest
from paceline.predict.measured import CALIBRATION_STUDY, measured_step, peak_above_framework
from paceline.predict.question import data_bytes
from paceline.predict.simulate import largest_of
from paceline.record import Record, Status
from paceline.runs.devices import process_environment
from paceline.runs.launch import launch
from paceline.runs.launchers.local import LocalLauncher
from paceline.runs.starters import ForkServers, fork_servers
from paceline.spec import BASELINE, RunSpec
from paceline.strategies import Strategy, baseline, strategies, strategy
from paceline.systems.hardware import LOCAL, Calibration, Collective, Curve, Hardware, LayerScratch, Quantity, StepCurve
from paceline.systems.local import System

LOCAL_BATCHES = (16, 64, 96, 160, 256)
# A step of the largest takes no longer than this; where it would, all of them are smaller.
LONGEST_STEP_SECONDS = 2.0
# A run has so many epochs: short ones, so that a burst of other load spoils few.
EPOCHS = (3, 13)
STEPS_OF_AN_EPOCH = (1, 16)
# Of the batches, this one is run beside others; this one strategies run; and these more than once: what is held varies
# most from run to run where most is.
CROWDED, BY_STRATEGIES, REPEATED = 1, 3, (1, 4)
MOST_RANKS = 8
# One of several dozen runs that fails does not lose the minute; one that fails again does.
ATTEMPTS = 2
# Of phases that are no runs, on two idle cores.
OPERATIONS_SECONDS, COLLECTIVES_SECONDS = 18.0, 8.0


@dataclass(frozen=True)
class Effort:
    """How much is measured: for how long each run computes, and how often; which trials of strategies are made."""

    run_seconds: float
    repeats: int
    crowded_rounds: int
    trials: tuple[Trial, ...]
    # Whether strategies run the workload that is calibrated with, too.
    runs_workload: bool
    # A run with its start, on two idle cores.
    phase_seconds: float


THOROUGH = Effort(1.0, 2, 2, TRIALS, runs_workload=True, phase_seconds=2.0)
# Without the trial that only tells chance of memory from rule, and each trial once.
QUICK = Effort(
    0.5, 1, 1, tuple(replace(trial, tries=1) for trial in (*TRIALS[:2], TRIALS[3])), False, phase_seconds=1.5
)


@dataclass
class Calibrator:
    """Takes the measurements in order; each uses what earlier ones found."""

    system: System
    base: RunSpec
    facts: ModelFacts
    say: Say
    keep: Callable[[Record], None] = lambda _record: None
    frameworks: Sequence[str] = ()
    effort: Effort = THOROUGH
    # Where it goes on after an interruption.
    journal: Journal = field(default_factory=Journal)
    _servers: ForkServers | None = None
    # Seconds of one and the same step on one worker, each time that it was run, by framework and batch.
    _repeats: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    _timed: Sequence[TimedOperation] = ()
    _scratch: dict[str, list[LayerScratch]] = field(default_factory=dict)
    _peaks: dict[str, list[MeasuredPeak]] = field(default_factory=dict)
    _batches: tuple[int, ...] = LOCAL_BATCHES
    _phases: Phases = field(default_factory=lambda: Phases(lambda _text: None, ()))

    def calibrate(self, described: Hardware) -> Hardware:
        """Measures the machine: a little more than a minute with PyTorch alone; other frameworks take longer."""
        calibration = Calibration(
            at=datetime.now(UTC).isoformat(timespec="seconds"), machine=self.system.cpu,
            frameworks={name: self.system.frameworks[name] for name in self.frameworks},
        )  # fmt: skip
        fields: dict[str, Any] = {}
        self._phases = Phases(self.say, self._typical_seconds())
        with fork_servers() as servers:
            self._servers = servers
            if "torch" in self.frameworks:
                with gauging(self.system.cores) as gauge:
                    self._phases.begin("timing operations")
                    # What measures and what runs are forked from import PyTorch at the same time.
                    self._prepare_runs(servers)
                    calibration = self._with_operations(calibration, gauge)
                    self._phases.begin("timing collectives between processes")
                    calibration, fields = self._with_collectives(calibration, gauge)
            source = f"measured by paceline calibrate, {calibration.at}"
            hardware = with_operations(self._described(described, fields, calibration), self._timed, source)
            calibration = hardware.calibrated
            for framework in self.frameworks:
                calibration = self._with_steps(calibration, framework, hardware)
            calibration = self._with_memory(calibration)
            if "torch" in self.frameworks:
                if len(self.system.cores) > 1:
                    self._phases.begin(f"timing {len(self.system.cores)} workers that compute side by side")
                    calibration, hardware = self._with_crowding(calibration, hardware)
                calibration, hardware = self._with_trials(calibration, hardware, source)
        deviation = deviation_of_a_run(list(self._repeats.values()))
        calibration = calibration.model_copy(update={"repeat_deviation": deviation})
        return hardware.model_copy(update={"calibration": calibration})

    def _typical_seconds(self) -> list[float]:
        """The seconds of each phase in order, on two idle cores."""
        several, with_torch = len(self.system.cores) > 1, "torch" in self.frameworks
        runs = len(LOCAL_BATCHES) + (self.effort.repeats - 1) * len(REPEATED)
        seconds = [OPERATIONS_SECONDS, *([OPERATIONS_SECONDS / 3] if several else []), COLLECTIVES_SECONDS]
        seconds = seconds if with_torch else []
        seconds += [self.effort.phase_seconds] * (runs * len(self.frameworks))
        if with_torch:
            seconds += [(1 + 2 * self.effort.crowded_rounds) * self.effort.phase_seconds] if several else []
            trials = trial_runs(self.system, self.effort.trials)
            trials += workload_runs(self.base, self.system) if self.effort.runs_workload else 0
            seconds += [self.effort.phase_seconds] * trials
        return seconds

    def _prepare_runs(self, servers: ForkServers) -> None:
        spec = self._spec(BASELINE, 1, LOCAL_BATCHES[0], self.effort.run_seconds)
        process = Process(0, 1, "worker", 0, self.system.cores[:1])
        servers.starter(strategy(BASELINE)).prepare([process_environment(spec, process, os.environ)])

    def _described(self, described: Hardware, fields: dict[str, Any], calibration: Calibration) -> Hardware:
        """The machine as it looks, with what was measured of its links."""
        source = f"measured by paceline calibrate, {calibration.at}"
        memory = Quantity(value=float(self.system.memory_bytes), source="/proc/meminfo, all cores")
        device = {"name": f"one core of {self.system.cpu}", "memory_bytes": memory}
        return described.model_copy(update={
            "name": LOCAL, "about": f"{self.system.cpu}, {len(self.system.cores)} cores",
            "node_devices": len(self.system.cores), "device": described.device.model_copy(update=device),
            "calibration": calibration,
            **{name: Quantity(value=value, source=source) for name, value in fields.items()},
        })  # fmt: skip

    def _with_operations(self, calibration: Calibration, gauge: Gauge) -> Calibration:
        measured = self.journal.measured("operations", lambda: gauge.operations(1))
        self._timed = timed_operations(measured["operations"])
        self._scratch["torch"] = fit_scratch("torch", layer_scratch(measured["scratch"]))
        crowding: dict[str, dict[str, float]] = {}
        cores = len(self.system.cores)
        if cores > 1:
            self._phases.begin(f"timing operations on {cores} cores at once")
            together = self.journal.measured("operations at once", lambda: gauge.operations(cores))["operations"]
            crowding[str(cores)] = crowding_by_kind(self._timed, timed_operations(together))
        return calibration.model_copy(update={"operation_crowding": crowding})

    def _with_collectives(self, calibration: Calibration, gauge: Gauge) -> tuple[Calibration, dict[str, Any]]:
        most = max(2, min(MOST_RANKS, len(self.system.cores)))
        curves: list[Collective] = []
        for ranks in sorted({2, most}):
            measured = self.journal.measured(f"transfers of {ranks}", partial(gauge.transfers, ranks))
            rows = measured["collectives"]
            for kind in dict.fromkeys(row["kind"] for row in rows):
                curve = transfer_curve([row for row in rows if row["kind"] == kind])
                curves.append(Collective(transport="gloo", kind=kind, ranks=ranks, curve=curve))
        return calibration.model_copy(update={"collectives": tuple(curves)}), {"interference": measured["interference"]}

    def _with_steps(self, calibration: Calibration, framework: str, hardware: Hardware) -> Calibration:
        """Steps of the workload on one worker, over the local batch."""
        single = baseline(framework)
        learned = hardware.model_copy(update={"calibration": calibration})
        # For how many steps there is time: by its operations in PyTorch, then by what the batch before took.
        expected = Compute(learned, "torch", "fp32").passes(self.facts, LOCAL_BATCHES[0], "").total
        self._batches = batches_within(LONGEST_STEP_SECONDS, expected / LOCAL_BATCHES[0])
        expected *= self._batches[0] / LOCAL_BATCHES[0]
        sizes: list[float] = []
        seconds: list[float] = []
        for place, batch in enumerate(self._batches):
            if sizes:
                expected = seconds[-1] * batch / sizes[-1]
            for repeat in range(self.effort.repeats if place in REPEATED else 1):
                self._phases.begin(f"{single.name}: steps of {batch} samples")
                record = self._run(self._spec(single.name, 1, batch, expected), repeat)
                step = one_worker_seconds(record)
                self._repeats.setdefault((framework, batch), []).append(step)
                if repeat and sizes[-1] == batch:
                    # Other programs only ever make a run longer.
                    seconds[-1] = min(seconds[-1], step)
                    continue
                sizes.append(float(batch))
                seconds.append(step)
        curve = StepCurve(
            framework=framework, model=self.base.workload, digest=model_digest(self.facts), precision="fp32",
            seconds=Curve.through(sizes, seconds),
        )  # fmt: skip
        return calibration.model_copy(update={"steps": (*calibration.steps, curve)})

    def _with_memory(self, calibration: Calibration) -> Calibration:
        """Adds the memory behaviour, from every run on one worker so far."""
        fits = [fit_memory(name, peaks, self._scratch.get(name, ())) for name, peaks in self._peaks.items() if peaks]
        return calibration.model_copy(update={"memory": tuple(fits)})

    def _with_crowding(self, calibration: Calibration, hardware: Hardware) -> tuple[Calibration, Hardware]:
        cores = len(self.system.cores)
        learned = Compute(hardware.model_copy(update={"calibration": calibration}), "torch", "fp32")
        batch = self._batches[CROWDED]
        passes = learned.passes(self.facts, batch)
        alone = passes.total + passes.overhead + passes.update_per_parameter * self.facts.parameters
        single, independent = self._spec(BASELINE, 1, batch, alone), independent_workers()
        side_by_side = single.model_copy(update={
            "strategy": independent.name, "knobs": independent.traits.independent_with, "workers": cores,
            "global_batch": batch * cores,
        })  # fmt: skip
        side_by_side = with_samples(side_by_side, (single.train_samples or 0) * cores)
        # In turn, so that what changes on the machine meanwhile meets both, and each compared with its neighbours.
        alone_seconds = [self._alone_again(single, 0)]
        crowding, lateness = [], []
        for turn in range(self.effort.crowded_rounds):
            record = self._run(side_by_side, turn)
            alone_seconds.append(self._alone_again(single, turn + 1))
            step = measured_step(record)
            assert step is not None
            worker_seconds = step.cpu_seconds / cores
            crowding.append(worker_seconds / mean(alone_seconds[-2:]))
            if not step.disturbed:
                lateness.append(slowest_of_each_step(record) / worker_seconds - 1)
        # Other programs are more in the way of several workers than of one.
        calibration = calibration.model_copy(update={"crowding": {str(cores): max(1.0, min(crowding))}})
        if not lateness:
            # Waiting for a core that another program has is not waiting for each other.
            return calibration, hardware
        straggling = max(0.0, min(lateness)) / largest_of(cores, 1.0)
        source = f"the slowest of {cores} workers that never meet over their CPU time, measured {calibration.at}"
        return calibration, hardware.model_copy(update={"straggling": Quantity(value=straggling, source=source)})

    def _alone_again(self, single: RunSpec, turn: int) -> float:
        seconds = one_worker_seconds(self._run(single, THOROUGH.repeats + turn))
        self._repeats["torch", self._batches[CROWDED]].append(seconds)
        return seconds

    def _with_trials(self, calibration: Calibration, hardware: Hardware, source: str) -> tuple[Calibration, Hardware]:
        """Fits operations as they are within models, and then what strategies' software takes beside them."""
        trials = run_trials(self.system, self._run, self._phases.begin, self.effort.trials)
        models = [
            ModelTiming(trial.facts, trial.alone.spec.samples_per_step, trial.alone.step.cpu_seconds)
            for trial in trials
        ]
        hardware = hardware.model_copy(update={"calibration": self._with_memory(calibration)})
        hardware = within_models(hardware, models, source)
        batch = self._batches[BY_STRATEGIES]
        step = Compute(hardware, "torch", "fp32").passes(self.facts, batch, model_digest(self.facts)).total
        workload = None
        if self.effort.runs_workload:
            workload = run_workload(self.base, self.facts, batch, step, self.system, self._run, self._phases.begin)
        overheads = strategy_overheads(hardware, [*trials, *([workload] if workload else [])])
        return hardware.calibrated.model_copy(update={"overheads": overheads}), hardware

    def _spec(self, name: str, workers: int, batch: int, step_seconds: float) -> RunSpec:
        step_seconds = max(step_seconds, 1e-6)
        run_seconds = self.effort.run_seconds
        epochs = _between(EPOCHS, run_seconds / step_seconds)
        steps = _between(STEPS_OF_AN_EPOCH, run_seconds / epochs / step_seconds)
        return self.base.model_copy(update={
            "strategy": name, "workers": workers, "global_batch": batch, "local_batch": None, "epochs": epochs,
            "steps": None, "train_samples": batch * steps, "device": "cpu", "precision": "fp32", "knobs": {},
        })  # fmt: skip

    def _run(self, spec: RunSpec, repeat: int) -> Record:
        record = self.journal.record(f"run {spec.key()} {repeat}", lambda: self._launched(spec, repeat))
        self._keep_peak(record)
        return record

    def _launched(self, spec: RunSpec, repeat: int) -> Record:
        assert self._servers is not None
        launcher = LocalLauncher(self._servers.starter(strategy(spec.strategy)))
        for _ in range(ATTEMPTS):
            run = PlannedRun(spec, repeat)
            record = launch(run, CALIBRATION_STUDY, self.system, lambda _event: None, launcher=launcher)
            self.keep(record)
            if record.ok:
                break
            if record.status is Status.INTERRUPTED:
                raise KeyboardInterrupt
            self.say(f"{spec.strategy} x{spec.workers} failed: {record.reason}")
        else:
            raise UserError(f"calibrating failed: {spec.strategy} x{spec.workers}: {record.reason}; run it by itself")
        return record

    def _keep_peak(self, record: Record) -> None:
        spec, chosen, peak = record.spec, strategy(record.spec.strategy), peak_above_framework(record)
        if chosen.family == "single" and peak is not None:
            facts = spec_facts(spec) if spec.model is None else self.facts
            held = chosen.footprint(spec, facts).heaviest.held_bytes + data_bytes(spec)
            run = MeasuredPeak(facts, spec.samples_per_step, peak, held)
            self._peaks.setdefault(chosen.framework or "", []).append(run)


def independent_workers() -> Strategy:
    """The PyTorch strategy whose workers can run side by side without exchanging anything."""
    of_torch = [chosen for chosen in strategies().values() if chosen.framework == "torch"]
    return next(chosen for chosen in of_torch if chosen.traits.independent_with is not None)


def batches_within(step_seconds: float, seconds_per_sample: float) -> tuple[int, ...]:
    """Local batches to measure: halved as often as the largest step needs, down to single samples."""
    parts = 1
    while parts < LOCAL_BATCHES[0] and LOCAL_BATCHES[-1] / parts * seconds_per_sample > step_seconds:
        parts *= 2
    return tuple(batch // parts for batch in LOCAL_BATCHES)


def _between(limits: tuple[int, int], value: float) -> int:
    return max(limits[0], min(limits[1], round(value)))
