"""Tries case after case of every part in turn until the time is up, and prints what became of them."""

import argparse
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from campaign import fuzzed, stopped, stores
from campaign.case import TOOL, Case, LostError, SkippedError
from campaign.leaks import Leaks

PARTS = {
    "kills, fake runs": stopped.kill_fake,
    "kills, real strategies": stopped.kill_real,
    "signals": stopped.send_signal,
    "a fault in every tenth": stopped.fault_every_tenth,
    "full disk": stores.full_disk,
    "removed store": stores.removed_store,
    "two and three writers": stores.several_writers,
    "damaged stores": stores.damaged_store,
    "commands": fuzzed.fuzz_command,
    "studies": fuzzed.fuzz_study,
    "system files": fuzzed.fuzz_system,
    "models": fuzzed.fuzz_model,
    "hostile web client": fuzzed.hostile_client,
}


@dataclass
class Tally:
    """What became of the cases of a part."""

    survived: int = 0
    lost: list[str] = field(default_factory=list)
    skipped: str | None = None
    seconds: float = 0.0

    @property
    def tried(self) -> int:
        """Cases that could be tried."""
        return self.survived + len(self.lost)


def try_case(
    part: str, number: int, seed: int, folder: Path, tally: Tally, tool: tuple[str, ...] = TOOL, short: bool = False
) -> None:
    """Makes one case and counts it; its folder stays where it was lost."""
    began, place = time.monotonic(), folder / f"{part.replace(' ', '-').replace(',', '')}-{number}"
    case = Case(part, seed, number, place, tool, short)
    try:
        PARTS[part](case)
        tally.survived += 1
        shutil.rmtree(place, ignore_errors=True)
    except SkippedError as reason:
        tally.skipped = str(reason)
    except LostError as reason:
        tally.lost.append(f"{part} {number}: {reason}")
    finally:
        case.close()
        tally.seconds += time.monotonic() - began


def print_table(tallies: dict[str, Tally], leaks: list[str]) -> None:
    """One line for each part, then what was lost and what was left behind."""
    print(f"{'part':24} {'tried':>6} {'survived':>9} {'lost':>5}")  # noqa: T201
    for part, tally in tallies.items():
        note = f"  skipped: {tally.skipped}" if tally.skipped else ""
        print(f"{part:24} {tally.tried:6} {tally.survived:9} {len(tally.lost):5}{note}")  # noqa: T201
    total = [sum(count) for count in zip(*((t.tried, t.survived, len(t.lost)) for t in tallies.values()), strict=True)]
    print(f"{'all':24} {total[0]:6} {total[1]:9} {total[2]:5}")  # noqa: T201
    print("left behind: " + ("; ".join(leaks) or "nothing"))  # noqa: T201
    for tally in tallies.values():
        for text in tally.lost:
            print(f"lost: {text}")  # noqa: T201


def main() -> int:
    """Gives every part the same share of the time."""
    options = argparse.ArgumentParser(prog="campaign", description=__doc__)
    options.add_argument("--minutes", type=float, default=30.0)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--part", choices=PARTS, help="only this part")
    options.add_argument("--first", type=int, default=0, help="the number of the first case of each part")
    options.add_argument("--count", type=int, help="how many cases of each part; as many as there is time for if unset")
    chosen = options.parse_args()
    parts = [chosen.part] if chosen.part else list(PARTS)
    tallies, until = {part: Tally() for part in parts}, time.monotonic() + 60 * chosen.minutes
    folder, leaks, numbers = Path(tempfile.mkdtemp(prefix="campaign-")), Leaks(), dict.fromkeys(parts, chosen.first)
    try:
        while time.monotonic() < until:
            left = [
                part for part in parts
                if chosen.count is None or numbers[part] < chosen.first + chosen.count
            ]  # fmt: skip
            if not left:
                break
            part = min(left, key=lambda name: tallies[name].seconds + 60 * (tallies[name].skipped is not None))
            print(f"{part} {numbers[part]}", file=sys.stderr, flush=True)  # noqa: T201
            try_case(part, numbers[part], chosen.seed, folder, tallies[part])
            numbers[part] += 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)  # noqa: T201
    print(f"seed {chosen.seed}, folder {folder}; next: " + str(numbers))  # noqa: T201
    left_behind = leaks.found(str(folder))
    print_table(tallies, left_behind)
    return 1 if left_behind or any(tally.lost for tally in tallies.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
