"""Run inside a network namespace: trains each strategy for two lengths and prints what the loopback link carried.

The difference of the two lengths is the traffic of the steps alone; set-up, evaluation and exit cancel out.
`python link_bytes.py WORKERS STRATEGY[:KNOB=JSON]...` prints JSON: strategy with knob -> bytes per step.
"""

import json
import sys
from pathlib import Path

from paceline.plan import PlannedRun, complete
from paceline.runs.launch import launch
from paceline.runs.template import templates
from paceline.spec import RunSpec
from paceline.strategies import strategy
from paceline.systems import local_system

# Beyond the warm-up of strategies that have one, and a whole number of their rounds apart.
SHORT, LONG = 16, 32


# Ethernet, IP and TCP with timestamps: small messages would be judged by their envelopes otherwise.
HEADER_BYTES = 14 + 20 + 32


def link_bytes() -> int:
    """What was sent inside of packets."""
    counters = Path("/sys/class/net/lo/statistics")
    sent, packets = (int((counters / name).read_text()) for name in ("tx_bytes", "tx_packets"))
    return sent - HEADER_BYTES * packets


if __name__ == "__main__":
    carried: dict[str, float | str] = {}
    with templates() as made:
        for word in sys.argv[2:]:
            name, _, knob = word.partition(":")
            knobs = {key: json.loads(value) for key, value in (knob.split("="),)} if knob else {}
            start = made.starter(strategy(name))
            totals = []
            for steps in (SHORT, LONG):
                fields = {"workers": int(sys.argv[1]), "global_batch": 64, "steps": steps, "train_samples": 2048}
                spec = complete(RunSpec(strategy=name, knobs=knobs, **fields))
                before = link_bytes()
                record = launch(PlannedRun(spec, 0), "link", local_system(), lambda _event: None, start=start)
                totals.append(link_bytes() - before)
                if not record.ok:
                    carried[word] = f"{record.reason}\n{record.log_tail}"
            carried.setdefault(word, (totals[1] - totals[0]) / (LONG - SHORT))
    print(json.dumps(carried))  # noqa: T201
