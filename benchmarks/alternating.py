"""Processes that train one network several ways in turn, an epoch each: Paceline's loop, then bare ones.

RANK=0 WORLD_SIZE=1 MASTER_PORT=... python benchmarks/alternating.py SPEC.json DATA.npz ROUNDS BARE...

What the machine does meanwhile falls on all of them alike. BARE names scripts of the folder `bare`; the first is set up
twice, as `again`, and shows what the machine leaves untold. `without_noise` is no script but Paceline's loop of a run
without the noise scale. Prints, for each way, seconds, CPU seconds and mean loss of every epoch. `overhead.py` starts
it on the cores and with the environment that a run's processes get.
"""

import importlib
import json
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path

from paceline.contract.context import Context, Process, Rendezvous
from paceline.contract.job import Service
from paceline.runs.folder import RunFolder
from paceline.runs.measure import train
from paceline.runs.wire import TrainingEvent
from paceline.spec import RunSpec
from paceline.strategies import strategy

BARE = Path(__file__).parent / "bare"
# Paceline's own loop, of a run that does not measure the noise of its gradients.
WITHOUT_NOISE = "without_noise"
# Seconds, CPU seconds, mean loss.
View = tuple[float, float, float]


def paceline_loop(spec: RunSpec, folder: Path) -> Callable[[int], View]:
    """The job that a worker of this run opens, driven as a worker drives it; progress goes to nobody."""
    rank, world, port = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    process = Process(rank, world, "worker", rank, tuple(os.sched_getaffinity(0)))
    context = Context(spec, process, Rendezvous("127.0.0.1", port, None, RunFolder(folder)))
    job = strategy(spec.strategy).open_job(context)
    assert not isinstance(job, Service)
    steps = context.order.steps_per_epoch
    nobody = os.open(os.devnull, os.O_WRONLY)

    def report(event: TrainingEvent) -> None:
        os.write(nobody, event.model_dump_json().encode())

    def epoch(number: int) -> View:
        part = train(job, [(number, steps)], spec.samples_per_step, report).epochs[0]
        losses = part.losses or []
        return (part.ended - part.stamps[0]) / 1e9, part.cpu_seconds, sum(losses) / len(losses)

    return epoch


def stay_in_group() -> None:
    """Has further jobs of this process use the process group that its first one joined."""
    from paceline.frameworks.torch import group

    group.join_group = lambda *_arguments, **_named: None


def main(spec_file: Path, data_file: str, rounds: int, bare: list[str]) -> None:
    sys.path.insert(0, str(BARE))
    spec = RunSpec.model_validate_json(spec_file.read_text())
    loops = {"paceline": paceline_loop(spec, spec_file.parent)}
    for name, script in [*((one, one) for one in bare), ("again", bare[0])]:
        if script == WITHOUT_NOISE:
            stay_in_group()
            loops[name] = paceline_loop(spec.model_copy(update={"noise_scale": False}), spec_file.parent)
        else:
            loops[name] = importlib.import_module(script).loop(data_file, spec.samples_per_step)
    views: dict[str, list[View]] = {name: [] for name in loops}
    shuffle = random.Random(0).sample
    for number in range(rounds):
        # In a new order each time: whoever comes after another finds that one's data in the caches.
        for name in shuffle(list(loops), len(loops)):
            views[name].append(loops[name](number))
    print("\n" + json.dumps(views), flush=True)
    os._exit(0)  # frameworks may abort in their own shutdown, after all is done


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4:])
