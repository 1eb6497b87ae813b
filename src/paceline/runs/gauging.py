"""The process that `gauge.py` starts: imports PyTorch once and forks others that measure, with one thread as it forks.

`python -m paceline.runs.gauging PARENT`. A line of JSON on standard input asks for as many processes as it has
requests; a line on standard output says what codes they ended with. What they measured is in the files that the
requests name.
"""

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from paceline.frameworks.torch_gauge import measure
from paceline.runs.lifeline import die_with


def serve() -> None:
    """Until nobody asks any more."""
    for line in sys.stdin:
        children = [_forked(request) for request in json.loads(line)]
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        sys.stdout.write(json.dumps(codes) + "\n")
        sys.stdout.flush()


def _forked(request: dict[str, Any]) -> int:
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
    serve()
