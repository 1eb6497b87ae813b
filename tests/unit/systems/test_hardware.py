"""System files: that each number has a source, that forms of names work, and what is refused."""

import tomllib
from pathlib import Path

import pytest

from paceline.errors import SpecError
from paceline.systems.files import load_hardware, networks, shipped_systems, to_toml
from paceline.systems.hardware import Curve, Hardware


@pytest.mark.parametrize("name", shipped_systems())
def test_a_shipped_system_is_sound_and_goes_by_its_file_name(name: str) -> None:
    hardware = load_hardware(name)
    assert hardware.name == name
    assert hardware.device.flops_per_second["fp32"].value > 1e10
    assert hardware.inner.bytes_per_second.value >= hardware.outer.bytes_per_second.value or name.startswith("cpu")


@pytest.mark.parametrize("name", shipped_systems())
def test_what_is_written_is_read_back_the_same(name: str) -> None:
    hardware = load_hardware(name)
    text = to_toml(hardware.model_dump(mode="json", exclude_none=True))
    assert Hardware.read(tomllib.loads(text), name) == hardware


def test_a_number_of_devices_goes_before_the_name() -> None:
    assert load_hardware("4xh100-nvlink").node_devices == 4
    assert load_hardware("h100-nvlink").node_devices == 8


def test_networks_differ_by_their_bandwidth() -> None:
    rates = [networks()[name].bytes_per_second.value for name in ("1g", "10g", "25g", "100g", "400g")]
    assert rates == sorted(rates)
    assert load_hardware("h100-nvlink", "10g").outer.bytes_per_second.value == pytest.approx(1e9)


@pytest.mark.parametrize(
    ("name", "network", "message"),
    [
        ("h100-nvlnk", None, "there is no system 'h100-nvlnk'; did you mean 'h100-nvlink'?"),
        ("0xh100-nvlink", None, "has no devices; write such as 8xh100-nvlink"),
        ("h100-nvlink", "26g", "there is no network '26g'"),
        ("local", None, "run paceline calibrate first"),
        ("no-such-file.toml", None, "cannot be read"),
    ],
)
def test_what_is_not_there_is_said(
    name: str, network: str | None, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecError) as caught:
        load_hardware(name, network)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [("name = ", "is not valid TOML"), ("name = 'x'", "about"), ("nodes = 1", "there is no field 'nodes'")],
)
def test_a_system_file_that_is_wrong_is_refused_in_words(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(SpecError) as caught:
        load_hardware(str(path))
    assert message in str(caught.value)


def test_a_curve_goes_through_its_points_and_on_along_its_line() -> None:
    curve = Curve.through([10.0, 20.0, 40.0], [2.0, 3.0, 5.0])
    assert (curve.fixed, curve.slope, curve.residual) == pytest.approx((1.0, 0.1, 0.0), abs=1e-9)
    assert curve.at(20.0) == pytest.approx(3.0)
    assert curve.at(400.0) == pytest.approx(41.0)


def test_points_beside_their_line_leave_a_residual_and_are_met_all_the_same() -> None:
    curve = Curve.through([1.0, 2.0, 4.0, 8.0], [1.0, 2.2, 3.8, 8.1])
    assert 0 < curve.residual < 0.1
    assert curve.at(2.0) == pytest.approx(2.2)


def test_a_curve_has_no_negative_part() -> None:
    curve = Curve.through([1.0, 10.0, 100.0], [0.5, 10.0, 100.0])
    assert curve.fixed >= 0 and curve.slope >= 0


def test_a_file_of_an_earlier_version_is_read_without_what_nothing_is_predicted_from() -> None:
    hardware = load_hardware("cpu-2-cores")
    values = hardware.model_dump(mode="json", exclude_none=True)
    values["calibration"] |= {"input_bytes_per_second": 5e9, "startup_seconds": {"torch": 2.0}}
    values["calibration"]["collectives"][0]["curve"]["cpu_seconds"] = [1.0]
    # Rates of layers by kind, of the time before operations.
    values["calibration"] |= {"layers": [{"framework": "torch", "kind": "dense"}], "layer_crowding": {"dense": 1.1}}
    values["calibration"] |= {"optimizer_seconds_per_parameter": {"torch": 1e-9}, "step_overhead_seconds": {}}
    values["device"] |= {"efficiency": {"value": 0.5, "source": "a data sheet"}}
    assert Hardware.read(values, "an earlier file") == hardware


def test_a_shipped_gpu_has_the_operations_that_were_timed_on_one_of_its_kind() -> None:
    hardware = load_hardware("h200-nvlink")
    assert hardware.measured_elsewhere
    assert {times.kind for times in hardware.calibrated.operations} == {
        "product", "convolution", "attention", "memory", "update",
    }  # fmt: skip
    # Links are those of the description: what was timed was one GPU alone.
    assert hardware.calibrated.collectives == ()
    assert hardware.device.host_seconds_per_operation["eager"].source.startswith("measured")
    assert load_hardware("8xh200-nvlink").calibrated.operations == hardware.calibrated.operations


def test_operations_that_do_not_ship_are_a_sentence(tmp_path: Path) -> None:
    text = to_toml(load_hardware("a100-nvlink").model_dump(mode="json", exclude_none=True))
    file = tmp_path / "mine.toml"
    file.write_text(f'operations = "h2000"\n{text}')
    with pytest.raises(SpecError, match=r"there are no operations 'h2000'; did you mean 'h200'\?"):
        load_hardware(str(file))


def test_a_slice_is_run_as_one() -> None:
    hardware = load_hardware("h200-nvlink")
    assert hardware.run_device == "cuda"
    assert hardware.model_copy(update={"slices": 4}).run_device == "cuda-slice"
    assert load_hardware("cpu-2-cores").run_device == "cpu"
