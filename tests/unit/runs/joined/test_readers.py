"""What each launcher leaves in the environment, and where the processes of a job meet."""

import json

import pytest

from paceline.errors import UserError
from paceline.runs.joined import FIRST_PORT, PORTS, SECRET, Membership, find_membership, meeting_of, readers

TORCHRUN = {
    "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost",
    "MASTER_PORT": "38503", "TORCHELASTIC_RUN_ID": "88ddf674", "TORCHELASTIC_USE_AGENT_STORE": "True",
}  # fmt: skip
SRUN = {
    "SLURM_PROCID": "2", "SLURM_NTASKS": "4", "SLURM_STEP_NODELIST": "node7", "SLURM_STEP_NUM_NODES": "1",
    "SLURM_JOB_ID": "12", "SLURM_STEP_ID": "3",
}  # fmt: skip
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-node7-77@1",
}  # fmt: skip
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "1"}
PYTORCHJOB = {"RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456"}


def tf_config(kind, index, **cluster):
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})}


@pytest.mark.parametrize(
    ("environment", "membership"),
    [
        (TORCHRUN, Membership("torchrun", 1, 2, "88ddf674 38503", "localhost", None, True)),
        (
            {**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "False", "LOCAL_WORLD_SIZE": "1"},
            Membership("torchrun", 1, 2, "88ddf674 38503", "localhost", 38503, False),
        ),
        (SRUN, Membership("srun", 2, 4, "12.3", "node7", None, True)),
        (OPEN_MPI, Membership("mpirun", 0, 2, "prterun-node7-77@1", None, None, True)),
        (HYDRA, Membership("mpirun", 1, 2, "", None, None, False)),
        (PYTORCHJOB, Membership("RANK and MASTER_ADDR", 1, 3, "23456", "job-master-0", 23456, False)),
        (
            tf_config("worker", 0, chief=["a:2222"], worker=["b:2222", "c:2222"], ps=["d:2222"]),
            Membership("TF_CONFIG", 1, 4, "a:2222 b:2222 c:2222 d:2222", "a", 2222, False),
        ),
        (
            tf_config("ps", 0, worker=["localhost:1", "localhost:2"], ps=["localhost:3"]),
            Membership("TF_CONFIG", 2, 3, "localhost:1 localhost:2 localhost:3", "localhost", 1, True),
        ),
    ],
    ids=["torchrun", "torchrun without store", "srun", "Open MPI", "hydra", "PyTorchJob", "Vertex AI", "one host"],
)  # fmt: skip
def test_each_launcher_is_read(environment, membership):
    assert find_membership(environment) == membership


@pytest.mark.parametrize("outer", [SRUN, OPEN_MPI, PYTORCHJOB, tf_config("worker", 0, worker=["a:1"])])
def test_of_nested_launchers_the_innermost_counts(outer):
    assert find_membership({**outer, **TORCHRUN}).launcher == "torchrun"
    assert find_membership({**SRUN, **outer}).launcher in ("srun", find_membership(outer).launcher)


def test_a_batch_script_of_slurm_is_in_no_step():
    script = {name: value for name, value in SRUN.items() if not name.startswith("SLURM_STEP")}
    with pytest.raises(UserError, match="paceline join was started by no launcher that it knows; use such as torchrun"):
        find_membership(script)


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({**TORCHRUN, "RANK": "first"}, "the environment variable RANK is 'first', which is no number"),
        ({**TORCHRUN, "RANK": "2"}, "torchrun says rank 2 of 2; ranks begin at 0"),
        ({"TF_CONFIG": "{}"}, "TF_CONFIG is '{}', which has no cluster and task"),
        ({"TF_CONFIG": "{"}, "TF_CONFIG is '{', which has no cluster and task"),
        (tf_config("evaluator", 0, worker=["a:1"]), "TF_CONFIG says that this is evaluator 0, which takes no part"),
        (tf_config("worker", 0, worker=["a"]), "TF_CONFIG names 'a', which is no host:port"),
    ],
)
def test_variables_that_make_no_sense_are_refused_in_words(environment, words):
    with pytest.raises(UserError) as refused:
        find_membership(environment)
    assert words in str(refused.value)


def test_processes_meet_where_the_launcher_says_or_where_the_user_does():
    job = find_membership(PYTORCHJOB)
    meeting = meeting_of(job, None, None, {})
    assert (meeting.host, meeting.port, meeting.on_one_machine) == ("job-master-0", 23456, False)
    named = meeting_of(job, "10.0.0.1", 4000, {})
    assert (named.host, named.port) == ("10.0.0.1", 4000)


def test_all_processes_of_a_job_derive_the_same_port_and_key_and_another_job_others():
    first, second = (meeting_of(find_membership({**SRUN, "SLURM_PROCID": rank}), None, None, {}) for rank in "01")
    assert first == second
    assert (first.host, FIRST_PORT <= first.port < FIRST_PORT + PORTS) == ("127.0.0.1", True)
    other = meeting_of(find_membership({**SRUN, "SLURM_STEP_ID": "4"}), None, None, {})
    assert (other.port, other.key) != (first.port, first.key)
    assert meeting_of(find_membership(SRUN), None, None, {SECRET: "word"}).key != first.key


def test_what_nobody_says_must_be_named():
    apart = find_membership(HYDRA)
    with pytest.raises(UserError, match="mpirun does not say where rank 0 is; name its machine with --host"):
        meeting_of(apart, None, 4000, {})
    with pytest.raises(UserError, match="mpirun gives its job no name to derive a port from; name a free one with"):
        meeting_of(apart, "node7", None, {})


def test_a_port_that_is_none_is_refused():
    said = find_membership({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "node7", "MASTER_PORT": "99999"})
    with pytest.raises(UserError, match="RANK and MASTER_ADDR says port 99999, and ports end at 65535; name a free"):
        meeting_of(said, None, None, {})
    assert meeting_of(said, None, 4000, {}).port == 4000


def test_every_reader_has_a_place_of_its_own():
    assert len({reader.place for reader in readers()}) == len(readers()) >= 5
