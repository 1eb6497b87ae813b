"""Numbers of a system file that no hardware has are refused by name; those of any hardware are taken."""

import pytest

from paceline.errors import SpecError
from paceline.systems.files import load_hardware
from paceline.systems.hardware import Hardware

MADE_UP = "made up for a test"


def described(place: tuple[str, ...], value: float) -> Hardware:
    """A shipped system with another number in that place."""
    values = load_hardware("h100-pcie").model_dump(mode="json", exclude_none=True)
    table = values
    for name in place[:-1]:
        table = table[name]
    table[place[-1]] = {"value": value, "source": MADE_UP}
    return Hardware.read(values, "mine.toml")


RATES = [
    ("device", "memory_bytes_per_second"), ("device", "flops_per_second", "fp32"), ("inner", "bytes_per_second"),
    ("outer", "bytes_per_second"), ("device", "product_efficiency"), ("device", "memory_efficiency"),
]  # fmt: skip


@pytest.mark.parametrize("value", [-0.0, 0.0, 1e-308, 1e308])
@pytest.mark.parametrize("place", RATES, ids=".".join)
def test_a_rate_that_nothing_can_be_divided_by_is_refused(place: tuple[str, ...], value: float) -> None:
    with pytest.raises(SpecError, match=r"(at least|at most) 1e.*"):
        described(place, value)


@pytest.mark.parametrize("value", [1e308, -1.0])
def test_a_delay_that_no_link_has_is_refused(value: float) -> None:
    with pytest.raises(SpecError, match=r"latency_seconds.value .* is out of range"):
        described(("inner", "latency_seconds"), value)


def test_what_is_no_delay_is_none() -> None:
    assert str(described(("inner", "latency_seconds"), -0.0).inner.latency_seconds.value) == "0.0"


@pytest.mark.parametrize("rest", [{}, {"bf16": {"value": 1e12, "source": MADE_UP}}], ids=["nothing", "bf16 alone"])
@pytest.mark.parametrize("name", ["cpu-2-cores", "h100-pcie"])
def test_a_device_without_its_fp32_is_refused(name: str, rest: dict[str, object]) -> None:
    values = load_hardware(name).model_dump(mode="json", exclude_none=True)
    values["device"]["flops_per_second"] = rest
    with pytest.raises(SpecError, match=r"mine.toml: flops_per_second has no fp32, .*; write its peak"):
        Hardware.read(values, "mine.toml")
