"""Joules of a run. The hardware is mocked: counter files in a temporary folder, and an object in NVML's place."""

from pathlib import Path

import pytest

from paceline.errors import UserError
from paceline.record import Energy, Epoch
from paceline.runs.meters import energy
from paceline.runs.meters.energy import (
    EnergyMeter,
    NvmlCounter,
    RaplCounter,
    charge,
    mean_watts,
    open_energy_meter,
    watts_per_core,
)

SECOND = 1_000_000_000


def zone(root: Path, place: str, name: str, microjoules: int, most: int = 1_000_000) -> Path:
    """A pretended counter of the processor."""
    folder = root / f"intel-rapl:{place}"
    folder.mkdir()
    (folder / "name").write_text(name + "\n")
    (folder / "energy_uj").write_text(f"{microjoules}\n")
    (folder / "max_energy_range_uj").write_text(f"{most}\n")
    return folder / "energy_uj"


class FakeNvml:
    """What NVML is asked, with answers in its units; `counts` tells whether its cards have a counter of energy."""

    class NVMLError(Exception):
        pass

    def __init__(self, counts: bool = True) -> None:
        self.counts, self.millijoules, self.milliwatts, self.lost = counts, {0: 5000, 1: 7000}, {0: 100_000}, False

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):
        if not self.counts or self.lost:
            raise self.NVMLError("not supported")
        return self.millijoules[handle]

    def nvmlDeviceGetPowerUsage(self, handle):
        return self.milliwatts[handle]

    def nvmlDeviceGetCount(self):
        return 2

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetHandleByUUID(self, name):
        return {"GPU-b": 1}[name]


def epoch(number=1, seconds=2.0, cpu=1.5):
    return Epoch(number=number, seconds=seconds, steps=4, samples=100, cpu_seconds=cpu, train_loss=1.0)


def counted(*readings, source="rapl", idle=0.0):
    return EnergyMeter(
        Energy(source=source, idle_watts=idle), readings=[(round(at * SECOND), joules) for at, joules in readings]
    )


def test_packages_and_memory_count_but_cores_and_the_platform_would_count_twice(tmp_path):
    for place, name, joules in (("0", "package-0", 100), ("0:0", "core", 50), ("0:1", "dram", 7), ("1", "psys", 900)):
        zone(tmp_path, place, name, joules)
    assert RaplCounter(tmp_path).joules() == pytest.approx(107e-6)


def test_a_counter_that_starts_again_from_zero_goes_on_rising(tmp_path):
    file = zone(tmp_path, "0", "package-0", 900_000)
    counter = RaplCounter(tmp_path)
    before = counter.joules()
    for now in (100_000, 50_000):
        file.write_text(str(now))
        counter.joules()
    assert counter.joules() - before == pytest.approx((1_000_000 + 1_000_000 - 900_000 + 50_000) / 1e6)


def test_where_no_counter_is_readable_there_is_none(tmp_path, monkeypatch):
    with pytest.raises(OSError, match="no counter"):
        RaplCounter(tmp_path)
    monkeypatch.setattr(energy, "RaplCounter", lambda: RaplCounter(tmp_path))
    assert energy.rapl_counter() is None


def test_cards_with_a_counter_are_read_in_joules_together():
    assert NvmlCounter(FakeNvml(), [0, 1]).joules() == pytest.approx(12.0)


def test_the_power_of_a_card_without_a_counter_is_added_up_over_time():
    nvml, times = FakeNvml(counts=False), iter((10.0, 12.0, 13.0))
    counter = NvmlCounter(nvml, [0], clock=lambda: next(times))
    nvml.milliwatts[0] = 300_000
    assert counter.joules() == pytest.approx(2 * 200)
    assert counter.joules() == pytest.approx(2 * 200 + 300)


def test_a_card_that_is_lost_leaves_a_gap_and_ends_no_run():
    nvml = FakeNvml()
    meter = EnergyMeter(Energy(source="nvml"), NvmlCounter(nvml, [0]))
    meter.read(last=True)
    nvml.lost = True
    meter.read(last=True)
    nvml.lost = False
    meter.read(last=True)
    assert [joules for _, joules in meter.readings] == [5.0, 5.0]


def test_readings_are_no_more_often_than_a_counter_changes():
    meter = EnergyMeter(Energy(source="nvml"), NvmlCounter(FakeNvml(), [0]))
    for _ in range(5):
        meter.read()
    assert len(meter.readings) == 1


@pytest.mark.parametrize(("visible", "expected"), [(None, [0, 1]), ("1,0", [1, 0]), ("GPU-b", [1]), ("", [])])
def test_the_cards_that_count_are_those_that_a_run_sees(visible, expected):
    assert energy._handles(FakeNvml(), visible) == expected


def test_the_energy_of_a_stretch_lies_straight_between_readings():
    meter = counted((0, 100.0), (1, 110.0), (2, 130.0))
    assert meter.joules_between(SECOND // 2, 3 * SECOND // 2) == pytest.approx(15.0)
    assert meter.joules_between(0, 2 * SECOND) == pytest.approx(30.0)


def test_a_stretch_that_readings_do_not_cover_is_not_guessed():
    meter = counted((1, 110.0), (2, 130.0))
    assert meter.joules_between(0, 2 * SECOND) is None
    assert meter.joules_between(SECOND, 3 * SECOND) is None
    assert counted().joules_between(0, SECOND) is None


def test_epochs_get_the_joules_between_their_edges():
    meter = counted((0, 0.0), (10, 100.0), source="nvml", idle=3.0)
    epochs, source = charge([epoch(1), epoch(2)], [(0, 2 * SECOND), (5 * SECOND, 8 * SECOND)], 0.0, meter)
    assert [one.joules for one in epochs] == [pytest.approx(20.0), pytest.approx(30.0)]
    assert source == Energy(source="nvml", idle_watts=3.0)


def test_an_estimate_is_cpu_seconds_times_watts_with_servers_shared_out_by_time():
    meter = EnergyMeter(Energy(source="estimated", watts_per_core=10.0))
    epochs, source = charge([epoch(1, 1.0, 2.0), epoch(2, 3.0, 4.0)], [(0, 1), (1, 2)], 8.0, meter)
    assert [one.joules for one in epochs] == [pytest.approx(10 * (2 + 2)), pytest.approx(10 * (4 + 6))]
    assert source.source == "estimated"


def test_a_processor_counter_that_missed_the_run_gives_way_to_an_estimate(monkeypatch):
    monkeypatch.setenv(energy.WATTS_VARIABLE, "2")
    epochs, source = charge([epoch(cpu=1.5)], [(0, SECOND)], 0.0, counted(idle=40.0))
    assert source == Energy(source="estimated", watts_per_core=2.0)
    assert epochs[0].joules == pytest.approx(3.0)


def test_a_run_on_gpus_is_never_estimated_from_its_cpu_seconds():
    epochs, source = charge([epoch()], [(0, SECOND)], 0.0, counted(source="nvml"))
    assert (epochs[0].joules, source) == (None, None)
    assert charge([epoch()], [(0, SECOND)], 0.0, None)[1] is None


def test_idle_power_is_what_the_counter_rises_by_when_nothing_runs(tmp_path):
    file = zone(tmp_path, "0", "package-0", 0)
    assert mean_watts(RaplCounter(tmp_path), lambda _seconds: file.write_text("900000")) > 0


def test_a_run_on_cores_without_a_counter_is_estimated_and_says_by_how_much(make_spec, monkeypatch):
    monkeypatch.setattr(energy, "rapl_counter", lambda: None)
    monkeypatch.delenv(energy.WATTS_VARIABLE, raising=False)
    assert open_energy_meter(make_spec(), []).energy == Energy(
        source="estimated", watts_per_core=energy.DEFAULT_WATTS_PER_CORE
    )


def test_a_run_on_cores_uses_the_processors_counter_where_there_is_one(make_spec, monkeypatch, tmp_path):
    zone(tmp_path, "0", "package-0", 0)
    monkeypatch.setattr(energy, "rapl_counter", lambda: RaplCounter(tmp_path))
    monkeypatch.setattr(energy, "_idle_watts", lambda _source, _gpus: 12.0)
    assert open_energy_meter(make_spec(), []).energy == Energy(source="rapl", idle_watts=12.0)


def test_a_run_on_gpus_uses_their_counters_or_has_no_energy(make_spec, monkeypatch):
    monkeypatch.setattr(energy, "_idle_watts", lambda _source, _gpus: 70.0)
    monkeypatch.setattr(energy, "_gpu_counter", lambda gpus: NvmlCounter(FakeNvml(), list(gpus)))
    assert open_energy_meter(make_spec(device="cuda", workers=2), [0, 1]).counter.joules() == pytest.approx(12.0)
    monkeypatch.setattr(energy, "_gpu_counter", lambda _gpus: None)
    assert open_energy_meter(make_spec(device="cuda"), [0]) is None


@pytest.mark.parametrize("text", ["much", "0", "-3", "inf", "nan"])
def test_watts_that_are_no_power_are_refused_in_words(monkeypatch, text):
    monkeypatch.setenv(energy.WATTS_VARIABLE, text)
    with pytest.raises(UserError, match="is no power; give the watts of one busy core"):
        watts_per_core()
