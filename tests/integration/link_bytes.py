"""Run inside a network namespace: trains each strategy for two lengths and prints what the loopback link carried.

The difference of the two lengths is the traffic of the steps alone; set-up, evaluation and exit cancel out.
A busy machine answers late, and TCP sends again what was never lost: a run in which it did is made anew.
`python link_bytes.py WORKERS STRATEGY[:NAME=JSON]...` prints JSON: strategy with knob or field -> bytes per step.
"""

import json
import sys
from pathlib import Path

from paceline.plan import PlannedRun, complete
from paceline.record import Record
from paceline.runs.launch import launch
from paceline.runs.launchers import Launcher
from paceline.runs.launchers.local import LocalLauncher
from paceline.runs.starters import fork_servers
from paceline.spec import RunSpec
from paceline.strategies import strategy
from paceline.systems import local_system

# Beyond the warm-up of strategies that have one, and a whole number of their rounds apart.
SHORT, LONG = 16, 32
TRIES = 5
SEGMENT_BYTES = 65536
NEXT_TO_NOTHING = 0.01

# Ethernet, IP and TCP with timestamps: small messages would be judged by their envelopes otherwise.
HEADER_BYTES = 14 + 20 + 32


def link_bytes() -> int:
    """What was sent inside of packets."""
    counters = Path("/sys/class/net/lo/statistics")
    sent, packets = (int((counters / name).read_text()) for name in ("tx_bytes", "tx_packets"))
    return sent - HEADER_BYTES * packets


def segments_sent_again() -> int:
    names, values = (
        line.split() for line in Path("/proc/net/snmp").read_text().splitlines() if line.startswith("Tcp:")
    )
    return int(values[names.index("RetransSegs")])


def bytes_of(spec: RunSpec, launcher: Launcher) -> tuple[int, Record]:
    """What the link carried for one run, the first of up to `TRIES` in which next to nothing was sent twice."""
    for _ in range(TRIES):
        before, again = link_bytes(), segments_sent_again()
        record = launch(PlannedRun(spec, 0), "link", local_system(), lambda _event: None, launcher=launcher)
        carried = link_bytes() - before
        if not record.ok or (segments_sent_again() - again) * SEGMENT_BYTES <= NEXT_TO_NOTHING * carried:
            break
    return carried, record


if __name__ == "__main__":
    # Sending the last segment again soon, in case it was lost, is the most frequent of them and can be turned off.
    Path("/proc/sys/net/ipv4/tcp_early_retrans").write_text("0")
    carried: dict[str, float | str] = {}
    with fork_servers() as forking:
        for word in sys.argv[2:]:
            name, _, setting = word.partition(":")
            more = {key: json.loads(value) for key, value in (setting.split("="),)} if setting else {}
            more = more if more.keys() <= RunSpec.model_fields.keys() else {"knobs": more}
            launcher = LocalLauncher(forking.starter(strategy(name)))
            totals = []
            for steps in (SHORT, LONG):
                fields = {"workers": int(sys.argv[1]), "global_batch": 64, "steps": steps, "train_samples": 2048}
                spec = complete(RunSpec(strategy=name, **fields, **more))
                total, record = bytes_of(spec, launcher)
                totals.append(total)
                if not record.ok:
                    carried[word] = f"{record.reason}\n{record.log_tail}"
            carried.setdefault(word, (totals[1] - totals[0]) / (LONG - SHORT))
    print(json.dumps(carried))  # noqa: T201
