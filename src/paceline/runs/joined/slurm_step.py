"""srun: the variables of a step's tasks, https://slurm.schedmd.com/srun.html (OUTPUT ENVIRONMENT VARIABLES)."""

import subprocess
from collections.abc import Mapping

from paceline.errors import UserError
from paceline.runs.joined import Membership, Reader, whole_number

NODES = "SLURM_STEP_NODELIST"


def read(environment: Mapping[str, str]) -> Membership | None:
    """Rank 0 is on the first node of the step; a batch script itself is in no step."""
    if "SLURM_PROCID" not in environment or NODES not in environment:
        return None
    nodes = environment[NODES]
    return Membership(
        launcher="srun",
        rank=whole_number(environment, "SLURM_PROCID"),
        world=whole_number(environment, "SLURM_NTASKS"),
        job=f"{environment.get('SLURM_JOB_ID', '')}.{environment.get('SLURM_STEP_ID', '')}",
        host=_first_node(nodes),
        on_one_machine=environment.get("SLURM_STEP_NUM_NODES") == "1",
    )


def _first_node(nodes: str) -> str:
    if "[" not in nodes and "," not in nodes:
        return nodes
    try:
        listed = subprocess.run(["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise UserError(f"scontrol cannot say which nodes {nodes} are: {error}; name the first with --host") from None
    return listed.stdout.split()[0]


READER = Reader("srun", "srun -N2 --ntasks-per-node=1 paceline join", read, place=4)
