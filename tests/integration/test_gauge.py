"""Processes that time layers and transfers: that they answer, and that what they say makes sense."""

import pytest

from integration.times import undisturbed
from paceline.errors import UserError
from paceline.predict.calibrate import _transfer_curve
from paceline.runs import gauge as gauges
from paceline.runs.gauge import KINDS, gauge_transfers
from paceline.systems.local import local_system

pytestmark = [pytest.mark.torch, pytest.mark.alone]
pytest.importorskip("torch", reason="PyTorch is not installed")


@undisturbed
def test_more_bytes_take_longer_and_every_kind_of_transfer_is_timed() -> None:
    found = gauge_transfers(2, local_system().cores, sizes=[1 << 10, 1 << 23])
    assert {one["kind"] for one in found["collectives"]} == set(KINDS)
    for kind in KINDS:
        curve = _transfer_curve([one for one in found["collectives"] if one["kind"] == kind])
        assert curve.values[1] > 3 * curve.values[0]
    assert found["interference"] >= 0


def test_a_process_that_cannot_measure_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gauges, "KINDS", ["teleport"])
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")
    with pytest.raises(UserError, match=r"measuring with 2 processes failed: .*run paceline doctor"):
        gauge_transfers(2, local_system().cores, sizes=["much"])  # type: ignore[list-item]
