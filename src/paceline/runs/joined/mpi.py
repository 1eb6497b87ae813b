"""mpirun of Open MPI, and of MPICH and Intel MPI (hydra). Neither says where rank 0 is, nor gives a port."""

from collections.abc import Mapping
from typing import NamedTuple

from paceline.runs.joined import Membership, Reader, whole_number


class _Variables(NamedTuple):
    """How a kind of mpirun calls what it says."""

    rank: str
    world: str
    local_world: str
    job: tuple[str, ...]


KINDS = (
    _Variables(
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_ess_jobid"),
    ),
    _Variables("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", ("PMI_ID_JOB", "HYDRA_JOBID")),
)


def read(environment: Mapping[str, str]) -> Membership | None:
    """The processes of one machine meet there; with several machines the user names that of rank 0."""
    kind = next((kind for kind in KINDS if kind.rank in environment and kind.world in environment), None)
    if kind is None:
        return None
    world = whole_number(environment, kind.world)
    return Membership(
        launcher="mpirun",
        rank=whole_number(environment, kind.rank),
        world=world,
        job=next((environment[name] for name in kind.job if environment.get(name)), ""),
        on_one_machine=environment.get(kind.local_world) == str(world),
    )


READER = Reader("mpirun", "mpirun -np 2 python -m paceline join", read, place=2)
