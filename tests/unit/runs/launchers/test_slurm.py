"""Which words Slurm's programs are started with, and what is refused before any of them is."""

import pytest

from paceline.errors import UserError
from paceline.fleet import FleetMachine, SlurmRequest, parse_fleet
from paceline.runs.launchers.slurm import allocation_command, open_slurm, step_command


def refusal(text):
    with pytest.raises(UserError) as refused, open_slurm(parse_fleet(text)):
        raise AssertionError("there is no Slurm here")
    return str(refused.value)


def test_an_agent_takes_a_whole_node_and_no_secret_is_on_its_command_line():
    words = step_command("12", FleetMachine(name="node7", python="/opt/python"), "4000")
    assert words[:3] == ["srun", "--jobid=12", "--nodelist=node7"]
    assert {"--overlap", "--nodes=1", "--ntasks=1", "--cpu-bind=none"} <= set(words)
    assert words[-2:] == ["/opt/python", "4000"]


def test_what_is_asked_of_slurm_is_what_the_fleet_says():
    request = SlurmRequest(nodes=3, partition="gpu", time="00:30:00", gpus_per_node=2, options=("--exclusive",))
    words = allocation_command(request)
    assert {"--nodes=3", "--partition=gpu", "--time=00:30:00", "--gpus-per-node=2", "--exclusive"} <= set(words)


def test_an_allocation_is_at_hand_or_asked_for(monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert refusal("slurm").startswith("--on slurm is for commands inside an allocation (salloc, sbatch); to get one")
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    assert "asks for an allocation, and this command is in one (job 12); use --on slurm" in refusal("slurm:nodes=2")


def test_without_slurm_it_is_said_what_is_missing(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert "salloc cannot be started: No such file or directory; --on slurm needs Slurm's own" in refusal(
        "slurm:nodes=2"
    )
