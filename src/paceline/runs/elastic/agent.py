"""`python -m paceline.runs.elastic.agent PARENT_PID WORDS...` is torchrun that dies with its parent."""

import os
import sys

from paceline.runs.processes import die_with

# Where a worker finds the number of its agent, with which it dies.
AGENT_PID = "PACELINE_AGENT_PID"


def run_agent(parent_pid: int, words: list[str]) -> None:
    """The whole process."""
    die_with(parent_pid)
    os.environ[AGENT_PID] = str(os.getpid())
    from torch.distributed.run import main

    main(words)


if __name__ == "__main__":
    run_agent(int(sys.argv[1]), sys.argv[2:])
