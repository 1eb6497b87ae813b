"""`python -m paceline.runs.elastic.agent PARENT_PID WORDS...` is torchrun that dies with its parent."""

import os
import sys

from paceline.runs.processes import die_with

# Where a worker finds the number of its agent, with which it dies.
AGENT_PID = "PACELINE_AGENT_PID"


def run_agent(words: list[str]) -> None:
    """The whole life of the agent; its workers find its number in their environment."""
    from torch.distributed.run import main

    os.environ[AGENT_PID] = str(os.getpid())
    main(words)


if __name__ == "__main__":
    die_with(int(sys.argv[1]))
    run_agent(sys.argv[2:])
