"""torchrun: https://docs.pytorch.org/docs/stable/elastic/run.html, section "Environment Variables"."""

from collections.abc import Mapping

from paceline.runs.joined import Membership, Reader, whole_number

RUN_ID = "TORCHELASTIC_RUN_ID"
# Set where MASTER_PORT is that of torchrun's own store, and so not free.
STORE_IS_TORCHRUNS = "TORCHELASTIC_USE_AGENT_STORE"


def read(environment: Mapping[str, str]) -> Membership | None:
    """The port is its own only where torchrun's store is not there; the job's name tells it apart else."""
    if RUN_ID not in environment:
        return None
    world = whole_number(environment, "WORLD_SIZE")
    store_is_there = environment.get(STORE_IS_TORCHRUNS) == "True"
    return Membership(
        launcher="torchrun",
        rank=whole_number(environment, "RANK"),
        world=world,
        job=f"{environment[RUN_ID]} {environment.get('MASTER_PORT', '')}",
        host=environment.get("MASTER_ADDR"),
        port=None if store_is_there else whole_number(environment, "MASTER_PORT"),
        on_one_machine=whole_number(environment, "LOCAL_WORLD_SIZE") == world,
    )


READER = Reader("torchrun", "torchrun --nproc-per-node 2 -m paceline join", read, place=0)
