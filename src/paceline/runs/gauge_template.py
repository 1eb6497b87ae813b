"""The process that `gauge.py` starts: imports a framework once and forks others that measure.

`python -m paceline.runs.gauge_template PARENT MODULE`. A line of JSON on standard input asks for as many processes as
it has requests; a line on standard output says what codes they ended with. What the module's `measure` finds for a
request is in the file that the request names. Nothing is computed before a fork, so that there is one thread.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from paceline.runs.lifeline import die_with

Measure = Callable[[dict[str, Any]], dict[str, Any]]


def serve(measure: Measure) -> None:
    """Until nobody asks any more."""
    for line in sys.stdin:
        children = [_forked(measure, request) for request in json.loads(line)]
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        os.write(sys.stdout.fileno(), f"{json.dumps(codes)}\n".encode())


def _forked(measure: Measure, request: dict[str, Any]) -> int:
    parent = os.getpid()
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        die_with(parent)
        os.dup2(os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), sys.stderr.fileno())
        os.sched_setaffinity(0, request["cores"])
        Path(request["answer"]).write_text(json.dumps(measure(request)))
        code = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


if __name__ == "__main__":
    die_with(int(sys.argv[1]))
    serve(import_module(sys.argv[2]).measure)
