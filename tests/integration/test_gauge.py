"""Processes that time layers and transfers: that they answer, and that what they say makes sense."""

import pytest

from integration.times import undisturbed
from paceline.calibrate import gauge as gauges
from paceline.calibrate.gauge import KINDS, gauging
from paceline.calibrate.measurements import transfer_curve
from paceline.errors import UserError
from paceline.systems.local import local_system

pytestmark = pytest.mark.torch
pytest.importorskip("torch", reason="PyTorch is not installed")


@pytest.mark.alone
@undisturbed
def test_more_bytes_take_longer_and_every_kind_of_transfer_is_timed() -> None:
    with gauging(local_system().cores) as gauge:
        found = gauge.transfers(2, sizes=[1 << 10, 1 << 23])
    assert {one["kind"] for one in found["collectives"]} == set(KINDS)
    for kind in KINDS:
        curve = transfer_curve([one for one in found["collectives"] if one["kind"] == kind])
        assert curve.values[1] > 3 * curve.values[0]
    assert found["interference"] >= 0


def test_a_process_that_cannot_measure_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gauges, "KINDS", ["teleport"])
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")
    with gauging(local_system().cores) as gauge:
        with pytest.raises(UserError, match=r"measuring with 2 processes failed: .*run paceline doctor"):
            gauge.transfers(2, sizes=[1 << 60])
        # It can still be asked for something else.
        monkeypatch.setattr(gauges, "KINDS", KINDS)
        assert gauge.transfers(2, sizes=[1 << 10])["collectives"]


def test_a_gauge_that_cannot_start_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gauges, "process_environment", lambda *_given: {"PYTHONHOME": "/nowhere"})
    said = r"measuring with 2 processes failed: .+; run paceline doctor"
    with gauging(local_system().cores) as gauge, pytest.raises(UserError, match=said):
        gauge.transfers(2)


def test_nothing_of_a_gauge_is_left_when_it_ends() -> None:
    with gauging(local_system().cores) as gauge:
        gauge.transfers(2, sizes=[1 << 10])
        process, folder = gauge.server.process, gauge.folder
    assert process.returncode is not None
    assert not folder.exists()
