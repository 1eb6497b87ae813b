"""A worker that an elastic agent started: `python -m paceline.runs.elastic.member FOLDER AGENT`.

It goes on from the last checkpoint with as many others as there are now. The global batch stays as it is, so each has a
larger or smaller share of it. The first of them notes the steps and saves.
"""

import os
import shutil
import sys
import traceback
from importlib import import_module
from pathlib import Path
from time import perf_counter_ns, process_time

from paceline.runs.elastic.agent import AGENT_PID
from paceline.runs.processes import CODE_FAILED, CODE_OK, die_with, leave

if __name__ == "__main__":
    # Before the other imports: a tool that is killed meanwhile must leave nobody alive.
    die_with(int(os.environ[AGENT_PID]))

from paceline.contract.context import Context, Process, Rendezvous
from paceline.contract.job import Job, ResumableJob, Service, Share
from paceline.runs.devices import pin
from paceline.runs.elastic.agents import PIDS
from paceline.runs.elastic.progress import Claim, ProgressNotes
from paceline.runs.elastic.training import as_one_epoch
from paceline.runs.folder import RunFolder
from paceline.runs.meters.memory import resident
from paceline.runs.wire import Measurements, ProcessStart, RankError, RankResult, WorkerOrders
from paceline.runs.worker import describe
from paceline.strategies import strategy

STEP = "step-"


def main(folder: RunFolder, agent: int, started: int) -> int:
    """Trains to the end of the run, or until its agent ends it; leaves a report in either case."""
    orders = folder.read_orders()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    place = orders.processes[agent]
    process = Process(rank, world, place.role, rank, place.cores, place=place.place, device=place.device)
    pin(process)
    meeting = Rendezvous(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), None, folder)
    context = Context(orders.spec.model_copy(update={"workers": world}), process, meeting)
    chosen = strategy(orders.spec.strategy)
    report: RankResult | RankError
    try:
        import_module(str(chosen.framework))
        imported, memory = perf_counter_ns(), resident()
        job = chosen.open_job(context)
        opened = perf_counter_ns()
        assert not isinstance(job, Service)
        measured = _train(job, orders, process, ProgressNotes(folder, rank) if rank == 0 else None)
        job.close()
        start = ProcessStart(
            started=started, imported=imported, opened=opened, baseline_bytes=memory.current_bytes if memory else None
        )
        report, code = RankResult(start=start, measured=measured, notes=context.notes), CODE_OK
    except BaseException as error:
        traceback.print_exc()
        report, code = describe(error, chosen), CODE_FAILED
    folder.write_report(rank, report)
    return code


def _train(job: Job, orders: WorkerOrders, process: Process, notes: ProgressNotes | None) -> Measurements:
    assert isinstance(job, ResumableJob) and orders.checkpoints is not None and orders.spec.checkpoint_every
    cpu_started, stamps, done = process_time(), [job.clock()], 0
    claim = Claim(RunFolder(orders.checkpoints)) if notes is not None else None
    first = _load_last(job, orders.checkpoints)
    share = Share(0, orders.spec.samples_per_step, tuple(range(process.world)))
    for epoch, steps in orders.schedule:
        if first < done + steps:
            job.start_epoch(epoch)
        for number in range(max(0, first - done), steps):
            job.step(number, 1)
            stamps.append(job.clock())
            if notes is not None and claim is not None:
                claim.check()
                notes.add(done + number + 1, (job.losses() or [float("nan")])[-1], share)
                if (done + number + 1) % orders.spec.checkpoint_every == 0:
                    _save(job, orders.checkpoints, done + number + 1)
        done += steps
    return as_one_epoch(job, stamps, cpu_started)


def _load_last(job: ResumableJob, folder: Path) -> int:
    """The step of the last whole checkpoint, which is loaded; 0 where there is none."""
    steps = [int(path.name.removeprefix(STEP)) for path in folder.glob(f"{STEP}*") if path.suffix == ""]
    if not steps:
        return 0
    job.whole_checkpoint().load(folder / f"{STEP}{max(steps)}")
    return max(steps)


def _save(job: ResumableJob, folder: Path, step: int) -> None:
    """Saves under another name first: this process may be ended at any moment."""
    draft = folder / f"{STEP}{step}.draft"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    job.whole_checkpoint().save(draft)
    earlier = [path for path in folder.glob(f"{STEP}*") if path != draft]
    target = folder / f"{STEP}{step}"
    shutil.rmtree(target, ignore_errors=True)
    draft.rename(target)
    for path in earlier:
        if path != target:
            shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    run_folder = RunFolder(Path(sys.argv[1]))
    (run_folder.path / PIDS / str(os.getpid())).touch()
    leave(main(run_folder, int(sys.argv[2]), perf_counter_ns()))
