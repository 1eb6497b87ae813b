"""What the collectives of a program that XLA compiled carry in one call of it, read from its text.

A collective within a loop counts as often as the loop turns.
"""

import re
from collections import Counter, defaultdict
from math import prod

import numpy as np

BYTES = {"f32": 4, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "pred": 1, "s8": 1}
COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.-]+) \(.*\) -> .* \{$")
COLLECTIVE = re.compile(r"= (.+?) (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(.*")
ARRAY = re.compile(r"(\w+)\[([\d,]*)\]")
LISTED = re.compile(r"replica_groups=\{\{([\d,]+)\}")
COUNTED = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
NAMED = re.compile(r"replica_groups=mesh\[([^\]]+)\](?:, device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))? \{([^}]*)\}")
CALLED = re.compile(r"(?:body|calls|to_apply|true_computation|false_computation)=%?([\w.-]+)")
TURNS = re.compile(r'known_trip_count"?:\{"?n"?:"?(\d+)')


def group_of(line: str) -> tuple[int, int]:
    """Devices that take part, and how far their numbers are apart."""
    first = _first_group(line)
    return len(first), first[1] - first[0] if len(first) > 1 else 0


def _first_group(line: str) -> list[int]:
    if listed := LISTED.search(line):
        return _numbers(listed[1])
    if named := NAMED.search(line):
        sides = {side: int(size) for side, size in re.findall(r"'(\w+)'=(\d+)", named[1])}
        used = re.findall(r"'(\w+)'", named[4])
        order = [list(sides).index(side) for side in (*(side for side in sides if side not in used), *used)]
        numbered = _devices(_numbers(named[2]), named[3]) if named[2] else np.arange(prod(sides.values()))
        grouped = numbered.reshape(list(sides.values())).transpose(order)
        return grouped.reshape(-1, prod(sides[side] for side in used))[0].tolist()
    counted = COUNTED.search(line)
    assert counted is not None, line
    return _devices(_numbers(counted[2]), counted[3]).reshape(_numbers(counted[1]))[0].tolist()


def _devices(sizes: list[int], turned: str | None) -> np.ndarray:
    """All devices, counted along sides of these sizes, with the sides in another order."""
    counted = np.arange(prod(sizes)).reshape(sizes)
    return (counted.transpose(_numbers(turned)) if turned else counted).reshape(-1)


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def payload_of(result: str) -> int:
    return sum(BYTES[kind] * prod(int(size) for size in sizes.split(",") if size)
               for kind, sizes in ARRAY.findall(result))  # fmt: skip


def carried(text: str) -> dict[str, int]:
    """Payload bytes by "kind over devices apart": the sum or the whole, of which each device has or gets a part."""
    own: dict[str, Counter[str]] = defaultdict(Counter)
    inner: dict[str, list[tuple[str, int]]] = defaultdict(list)
    here = entry = ""
    for line in text.splitlines():
        if start := COMPUTATION.match(line.strip()):
            here = start[1]
            entry = here if line.startswith("ENTRY") else entry
        elif found := COLLECTIVE.search(line):
            devices, apart = group_of(line)
            whole = devices if found[2] == "reduce-scatter" else 1
            own[here][f"{found[2]} over {devices} apart {apart}"] += payload_of(found[1]) * whole
        else:
            turns = TURNS.search(line) if " while(" in line else None
            inner[here] += [(name, int(turns[1]) if turns else 1) for name in CALLED.findall(line)]

    def total(name: str) -> Counter[str]:
        sums = Counter(own[name])
        for called, times in inner[name]:
            sums.update({kind: size * times for kind, size in total(called).items()})
        return sums

    return dict(total(entry))
