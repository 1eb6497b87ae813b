"""What several machines read becomes one record: findings that name them, energy of all, one environment."""

import pytest

from paceline.record import Energy, GpuUse
from paceline.runs.meters.load import Reading
from paceline.runs.surroundings import (
    joined_energy,
    joined_environment,
    joined_gpus,
    machine_findings,
    machine_records,
    one_host_finding,
)
from paceline.runs.wire import ClockOffset, MachineReport

SECOND = 1_000_000_000


def report(name, boot_id, busy=0.0, run=0.0, **fields):
    load = (Reading(0.0, 0.0, 0.0, 0.0, 4), Reading(10.0, busy, 0.0, run, 4))
    environment = {"python": "3.11", "cpu": "EPYC", "host": f"host of {name}"}
    return MachineReport(name=name, boot_id=boot_id, load=load, environment=environment, **fields)


def test_other_load_is_told_of_the_machine_that_had_it():
    (finding,) = machine_findings([report("left", "a", 20.0, 20.0), report("right", "b", 30.0, 10.0)], 0.0, None)
    assert finding.text == "other programs used 50% of right during the run"


def test_agents_of_one_host_are_no_other_load_to_each_other_nor_is_the_launcher():
    both = [report("left", "a", 22.0, 10.0), report("right", "a", 22.0, 10.0)]
    assert machine_findings(both, 0.0, ("a", *report("", "a", 22.0, 2.0).load)) == []
    (finding,) = machine_findings([report("left", "a", 22.0, 10.0)], 0.0, None)
    assert "of left" in finding.text


def test_machines_that_are_one_computer_are_told():
    (finding,) = one_host_finding([report("left", "a"), report("right", "a"), report("far", "b")])
    assert finding.text == "left and right are the same computer: each has some of its cores"
    assert one_host_finding([report("left", "a"), report("far", "b")]) == []


def test_processes_that_joined_on_one_machine_are_that_machine_once():
    both = [report("left", "a", 30.0, 5.0), report("left", "a", 30.0, 5.0)]
    assert one_host_finding(both) == []
    assert [machine.name for machine in machine_records(both)] == ["left"]
    (finding,) = machine_findings(both, 0.0, None)
    assert finding.text == "other programs used 50% of left during the run"


def test_gpus_carry_the_name_of_their_machine_into_findings_and_record():
    use = GpuUse(name="H100", utilisation=0.5, clock_mhz=1.0, most_clock_mhz=2.0, other_processes=2)
    machines = [report("left", "a", gpus=(use,)), report("right", "b", gpus=(use,))]
    assert [gpu.machine for gpu in joined_gpus(machines)] == ["left", "right"]
    assert "had GPU 0 of right (H100) in use" in machine_findings(machines, 0.0, None)[1].text


def energy(source, readings, offset=0):
    return {"energy": Energy(source=source, idle_watts=5.0), "energy_readings": readings,
            "clock": ClockOffset(offset=offset)}  # fmt: skip


def test_energy_of_hosts_adds_up_on_one_clock_and_a_host_counts_once():
    readings = [(0, 0.0), (10 * SECOND, 100.0)]
    later = [(at + 7 * SECOND, joules) for at, joules in readings]
    machines = [
        report("left", "a", **energy("rapl", readings)), report("beside", "a", **energy("rapl", readings)),
        report("right", "b", **energy("rapl", later, offset=7 * SECOND)),
    ]  # fmt: skip
    meter = joined_energy(machines)
    assert meter.joules_between(SECOND, 2 * SECOND) == pytest.approx(20.0)
    assert meter.energy.idle_watts == 10.0


def test_unlike_sources_of_energy_become_an_estimate():
    machines = [report("left", "a", **energy("rapl", [])), report("right", "b", **energy("estimated", []))]
    assert joined_energy(machines).energy.source == "estimated"


def test_machines_without_a_counter_have_no_energy():
    assert joined_energy([report("left", "a")]) is None


def test_the_environment_lists_each_kind_of_machine_once_and_the_names_of_all_hosts():
    environment = joined_environment([report("left", "a"), report("right", "b")])
    assert environment["python"] == "3.11"
    assert len(environment["machines"]) == 1
    assert environment["machine_hosts"] == {"left": "host of left", "right": "host of right"}
    assert "machines" not in joined_environment([report("", "a")])


def test_the_record_keeps_each_clock_with_its_error():
    (machine,) = machine_records([report("left", "a", address="10.0.0.1", clock=ClockOffset(offset=1_500, error=20))])
    assert (machine.name, machine.address, machine.host) == ("left", "10.0.0.1", "host of left")
    assert (machine.clock_offset_seconds, machine.clock_error_seconds) == (1.5e-6, 2e-8)
