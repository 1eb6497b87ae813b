"""Run in a process of its own: opens a JAX job in one process, makes some steps, and prints what lies where.

`python jax_shards.py SPEC_JSON FOLDER` prints JSON: the shapes of every parameter's parts in the order of devices, and
of one device's program how often each kind of collective stands in it, how many arrays have which first dimension, the
bytes that it needs beside what it is given, and its text.
"""

import json
import os
import re
import sys
from collections import Counter
from pathlib import Path

from paceline.contract.context import Context, Rendezvous
from paceline.runs.devices import lay_out, pin
from paceline.runs.folder import RunFolder
from paceline.spec import RunSpec
from paceline.strategies import strategy
from paceline.systems import local_system

COLLECTIVES = re.compile(r" (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(")
STEPS = 2

if __name__ == "__main__":
    spec, folder = RunSpec.model_validate_json(sys.argv[1]), Path(sys.argv[2])
    chosen = strategy(spec.strategy)
    process = lay_out(chosen.needs.roles(spec), local_system().cores, spec.cores_per_worker)[0]
    pin(process)
    # Read when JAX is imported, which it may have been before this process was forked.
    import jax

    jax.config.update("jax_num_cpu_devices", int(os.environ["JAX_NUM_CPU_DEVICES"]))
    job = chosen.open_job(Context(spec, process, Rendezvous("127.0.0.1", 0, None, RunFolder(folder))))
    job.start_epoch(0)
    for number in range(STEPS):
        job.step(number, 1)
    job.wait()
    text = job.program()
    found = {
        "parts": job.parts(),
        "collectives": Counter(COLLECTIVES.findall(text)),
        "program": text,
        "temporary_bytes": job.temporary_bytes(),
        "rows": Counter(re.findall(r"= f32\[(\d+)[,\]]", text)),
    }
    print(json.dumps(found), flush=True)  # noqa: T201
    os._exit(0)
