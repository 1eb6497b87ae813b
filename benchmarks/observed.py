"""One process that trains a small network by hand, an epoch each in turn: unobserved, and observed as a script is.

python benchmarks/observed.py ROUNDS

The network is that of `examples/plain_script`: short steps, of which observing takes the largest share. Prints, for
each way, seconds, CPU seconds and mean loss of every epoch, as `alternating.py` does. `overhead.py` starts it.
"""

import json
import os
import random
import sys
from collections.abc import Callable
from time import perf_counter, process_time

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from paceline.callbacks import steps
from paceline.callbacks.optimizer import OptimizerSteps
from paceline.runs.scripts.steps import ReportedSteps
from paceline.runs.wire import TrainingEvent
from paceline.spec import RunSpec

BATCH, STEPS, WIDTH = 64, 60, 512
Batches = list[tuple[torch.Tensor, torch.Tensor]]


class Training:
    """A model, its optimizer and the batches of an epoch."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        layers = [nn.Linear(256, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10)]
        self.model = nn.Sequential(*layers)
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.batches: Batches = [(torch.randn(BATCH, 256), torch.randint(0, 10, (BATCH,))) for _ in range(STEPS)]

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> float:
        """As the example does it."""
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(inputs), targets)
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())

    def epoch(self) -> float:
        return sum(self.step(*batch) for batch in self.batches) / STEPS

    def watched_epoch(self) -> float:
        return sum(self.step(*batch) for batch in steps.watch(self.batches)) / STEPS

    def epoch_of_steps(self) -> float:
        total = 0.0
        for inputs, targets in self.batches:
            with steps.step(samples=len(inputs)):
                total += self.step(inputs, targets)
        return total / STEPS


def observed(epoch: Callable[[], float]) -> Callable[[], float]:
    """The epoch as `paceline run train.py` has it: steps are noted and reported, and optimizers have a hook."""
    nobody = os.open(os.devnull, os.O_WRONLY)

    def report(event: TrainingEvent) -> None:
        os.write(nobody, event.model_dump_json().encode())

    spec = RunSpec(global_batch=BATCH, steps=STEPS)

    def run() -> float:
        log = steps.start_log(steps.StepLog(on_step=ReportedSteps(spec, report)))
        hook = register_optimizer_step_post_hook(OptimizerSteps(log).after_step)
        try:
            return epoch()
        finally:
            hook.remove()
            steps._log = None

    return run


def main(rounds: int) -> None:
    # One for all: memory that lies elsewhere makes more of a difference than what is compared.
    training, ways = Training(), dict[str, Callable[[], float]]()
    for name, method, is_observed in (
        ("bare", "epoch", False), ("again", "epoch", False), ("nothing changed in the script", "epoch", True),
        ("paceline.watch", "watched_epoch", True), ("paceline.step", "epoch_of_steps", True),
    ):  # fmt: skip
        one = getattr(training, method)
        ways[name] = observed(one) if is_observed else one
    views: dict[str, list[tuple[float, float, float]]] = {name: [] for name in ways}
    shuffle = random.Random(0).sample
    for _ in range(rounds):
        for name in shuffle(list(ways), len(ways)):
            began, cpu_began = perf_counter(), process_time()
            loss = ways[name]()
            views[name].append((perf_counter() - began, process_time() - cpu_began, loss))
    print("\n" + json.dumps(views), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
