"""Opens a one-process TensorFlow strategy, makes one step, and prints where its operations really ran.

`python tf_operations.py STRATEGY WORKERS [FIELDS]` prints JSON: device -> kind of operation -> how many, from the
graphs that TensorFlow cut for its devices.
"""

import json
import sys
from collections import Counter
from typing import Any

from paceline.contract.context import Context, Process, Rendezvous
from paceline.contract.job import Service
from paceline.plan import complete
from paceline.spec import RunSpec
from paceline.strategies import strategy


def operations(name: str, workers: int, **fields: Any) -> dict[str, Counter[str]]:
    usual = {"strategy": name, "workers": workers, "global_batch": 64, "train_samples": 64, "steps": 1}
    spec = complete(RunSpec.parse({**usual, **fields}, "operations"))
    context = Context(spec, Process(0, 1, "worker", 0, (0,)), Rendezvous("", 0))
    job = strategy(name).open_job(context)
    assert not isinstance(job, Service)
    from tensorflow.python.eager import context as eager

    job.start_epoch(0)
    eager.context().enable_graph_collection()
    job.step(0, 1)
    found: dict[str, Counter[str]] = {}
    for graph in eager.context().export_run_metadata().partition_graphs:
        for node in graph.node:
            found.setdefault(node.device.rpartition("/")[2], Counter())[node.op] += 1
    return found


if __name__ == "__main__":
    fields = json.loads(sys.argv[3]) if sys.argv[3:] else {}
    print(json.dumps(operations(sys.argv[1], int(sys.argv[2]), **fields)))  # noqa: T201
