"""Runs whose times a test knows beforehand, on a machine that others use too."""

import functools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec

from integration.traced import breakdown
from paceline.runs.starters import ForkServers

SCRIPT = Path(__file__).parent / "traced.py"
PATIENCE_SECONDS = 280.0
TRIES = 3
P = ParamSpec("P")


def traced(fields: dict[str, Any], *around: str, forking: ForkServers | None = None) -> list[dict[str, float]]:
    """The breakdown of every rank of an instrumented run: made here, or by a command around it."""
    if forking is not None:
        return breakdown(fields, forking)
    command = [*around, sys.executable, str(SCRIPT), json.dumps(fields)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    if done.returncode:  # Not an assertion: a run that fails is not made anew.
        raise RuntimeError(done.stderr)
    return list(json.loads(done.stdout.strip().splitlines()[-1]))


def undisturbed(test: Callable[P, None]) -> Callable[P, None]:
    """Measure up to `TRIES` times: what other programs do to a few steps comes and goes, a fault of ours stays."""

    @functools.wraps(test)
    def tried(*given: P.args, **named: P.kwargs) -> None:
        for _ in range(TRIES - 1):
            try:
                return test(*given, **named)
            except AssertionError as disturbed:
                sys.stderr.write(f"measured anew: {disturbed}\n")
        return test(*given, **named)

    return tried
