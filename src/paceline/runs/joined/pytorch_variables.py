"""PyTorch's own variables, as a PyTorchJob of Kubernetes and many scripts set them: RANK, WORLD_SIZE, MASTER_*."""

from collections.abc import Mapping

from paceline.runs.joined import Membership, Reader, whole_number

NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def read(environment: Mapping[str, str]) -> Membership | None:
    """Nobody is at the port yet: the first process is meant to open it."""
    if any(name not in environment for name in NEEDED):
        return None
    host, port = environment["MASTER_ADDR"], whole_number(environment, "MASTER_PORT")
    return Membership(
        launcher="RANK and MASTER_ADDR",
        rank=whole_number(environment, "RANK"),
        world=whole_number(environment, "WORLD_SIZE"),
        # Not the address, which a PyTorchJob's first process knows by another name than the rest.
        job=f"{port}",
        host=host,
        port=port,
    )


READER = Reader("RANK and MASTER_ADDR", "RANK=0 WORLD_SIZE=2 MASTER_ADDR=... paceline join", read, place=1)
