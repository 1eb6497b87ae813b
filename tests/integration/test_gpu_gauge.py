"""Processes that measure a GPU, tried on the processor: that they answer, and that one that fails leaves its reason."""

from dataclasses import replace

import pytest

from integration.conftest import Tool
from paceline.calibrate.gpu.calibrator import GpuCalibrator
from paceline.calibrate.gpu.gauge import gpu_gauging
from paceline.systems.files import to_toml
from paceline.systems.hardware import Hardware
from paceline.systems.local import Gpu, local_system

pytestmark = pytest.mark.torch
pytest.importorskip("torch", reason="PyTorch is not installed")
# So small that a processor makes many of them in a second.
SMALL = 1e6


def test_every_part_is_measured_and_becomes_a_system_that_predicts() -> None:
    said: list[str] = []
    system = replace(local_system(), gpus=(Gpu("NVIDIA H200", 1 << 37),) * 2)
    parts = {"products": 1.0, "convolutions": 1.0, "attention": 1.0, "memory": 1.0, "updates": 1.0, "host": 3.0}
    calibrator = GpuCalibrator(system, "cpu", said.append, parts=parts, most_flops=SMALL)  # type: ignore[arg-type]
    hardware = calibrator.calibrate()
    known = hardware.calibration
    assert known is not None
    kinds = {times.kind for times in known.operations}
    assert {"product", "memory", "update"} <= kinds
    assert all(seconds > 0 for times in known.operations for seconds in times.seconds)
    assert {curve.kind for curve in known.collectives} >= {"all-reduce"}
    assert hardware.node_devices == 2
    assert any("timing products" in text for text in said)
    assert "eager" in hardware.device.host_seconds_per_operation
    assert to_toml(hardware.model_dump(mode="json", exclude_none=True))
    assert isinstance(hardware, Hardware)


def test_a_part_that_fails_leaves_its_reason_and_the_others_are_kept() -> None:
    with gpu_gauging("cpu", local_system(), 1, lambda _text: None, SMALL) as gauge:
        # There is no NVML to read power from.
        answer = gauge.measure({"updates": 1.0, "power": 0.2})
    assert answer.operations and "power" in answer.failures


def test_a_machine_without_a_gpu_says_so(tool: Tool) -> None:
    for device in ("cuda", "cuda-slice"):
        ended = tool("calibrate", "--device", device)
        assert ended.code == 2
        assert f"--device {device}: this machine has no CUDA device; use --device cpu" in ended.err
    ended = tool("calibrate", "--device", "gpu")
    assert ended.code == 2 and "--device 'gpu' is unknown" in ended.err
    assert "paceline-system.toml" not in tool.listing()
