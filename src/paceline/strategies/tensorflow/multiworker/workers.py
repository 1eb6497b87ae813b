"""Several TensorFlow processes that train together: who listens where, and how they part."""

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import tensorflow as tf

from paceline.contract.context import Context
from paceline.frameworks.meeting import POLL_SECONDS, held_ports


@contextlib.contextmanager
def cluster(context: Context) -> Iterator[None]:
    """Tells TensorFlow, for as long as it starts its server, who the workers are and where each of them listens."""
    with held_ports(context) as ports:
        addresses = [f"{context.rendezvous.host}:{port}" for port in ports]
        task = {"type": "worker", "index": context.process.index}
        os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": task})
        try:
            yield
        finally:
            del os.environ["TF_CONFIG"]


class Barrier:
    """A sum over all replicas, which none has before all have come."""

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self._strategy = strategy
        self._meet = tf.function(self._sum, autograph=False)

    def __call__(self) -> None:
        """Returns when every process has called it."""
        self._meet().numpy()

    def _sum(self) -> tf.Tensor:
        ones = self._strategy.run(lambda: tf.ones(()))
        return self._strategy.reduce(tf.distribute.ReduceOp.SUM, ones, axis=None)


def part(context: Context) -> None:
    """Ends the meeting without a word of complaint from anyone.

    A process that has its sum may still be asked for it by others, so none leaves before all are done; the first one
    also answers heartbeats, so it leaves last, once each of the others has left its result.
    """
    process, folder = context.process, context.rendezvous.folder
    (folder / f"done-{process.rank}").touch()
    _wait_for(context, [folder / f"done-{rank}" for rank in range(process.world)])
    if process.rank == 0:
        _wait_for(context, [folder / f"rank-{rank}.json" for rank in range(1, process.world)])


def _wait_for(context: Context, files: list[Path]) -> None:
    deadline = time.monotonic() + context.spec.collective_timeout_seconds
    while not all(file.exists() for file in files) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
