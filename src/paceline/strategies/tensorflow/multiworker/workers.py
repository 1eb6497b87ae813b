"""Several TensorFlow processes that train together: who listens where, and how they part."""

import contextlib
import json
import os
from collections.abc import Iterator

import tensorflow as tf

from paceline.contract.context import FINISHED, Context
from paceline.frameworks.meeting import held_addresses

DONE = "done"


@contextlib.contextmanager
def cluster(context: Context) -> Iterator[None]:
    """Tells TensorFlow, for as long as it starts its server, who the workers are and where each of them listens."""
    with held_addresses(context) as addresses:
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
    """Ends the meeting: none leaves before all are done, as others may still ask it for a sum.

    The first one also answers heartbeats, so it leaves last, once each of the others has left its report.
    """
    process, rendezvous, patience = context.process, context.rendezvous, context.spec.collective_timeout_seconds
    rendezvous.publish(DONE, process.rank)
    # A process that never comes has failed, and the launcher will say so; this one need not.
    with contextlib.suppress(TimeoutError):
        rendezvous.await_values(DONE, range(process.world), patience)
        if process.rank == 0:
            rendezvous.await_values(FINISHED, range(1, process.world), patience)
