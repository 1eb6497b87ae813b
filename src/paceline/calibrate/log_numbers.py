"""The numbers of the predictor that no data sheet has, and how a fit may move each of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline.systems.hardware import Hardware, Quantity


@dataclass(frozen=True)
class FittedNumber:
    """One fitted number: its start, its allowed deviation (log of a factor), and its bounds."""

    name: str
    spread: float
    least: float
    most: float
    start: Callable[[Hardware], float]
    place: Callable[[Hardware, float, str], Hardware]
    # Whether it is about what a rank computes, which is worked out once for all numbers that are not.
    of_passes: bool = False
    # Whether it is about what blocks take, which their factors then correct.
    of_blocks: bool = True


def _of_device(name: str) -> Callable[[Hardware, float, str], Hardware]:
    def put(hardware: Hardware, value: float, source: str) -> Hardware:
        device = hardware.device.model_copy(update={name: Quantity(value=value, source=source)})
        return hardware.model_copy(update={"device": device})

    return put


def _of_link(side: str, name: str) -> Callable[[Hardware, float, str], Hardware]:
    def put(hardware: Hardware, value: float, source: str) -> Hardware:
        link = getattr(hardware, side).model_copy(update={name: Quantity(value=value, source=source)})
        return hardware.model_copy(update={side: link})

    return put


def _of_software(name: str) -> Callable[[Hardware, float, str], Hardware]:
    def put(hardware: Hardware, value: float, _source: str) -> Hardware:
        assert hardware.software is not None
        return hardware.model_copy(update={"software": hardware.software.model_copy(update={name: value})})

    return put


def _host_seconds(hardware: Hardware, value: float, source: str) -> Hardware:
    each = {**hardware.device.host_seconds_per_operation, "eager": Quantity(value=value, source=source)}
    device = hardware.device.model_copy(update={"host_seconds_per_operation": each})
    return hardware.model_copy(update={"device": device})


HOST = "host_seconds_per_operation"
# Spreads and bounds are ours: efficiencies are known within a third, links within half, hosts hardly at all.
FITTED = (
    FittedNumber(
        "product_efficiency", 0.3, 0.1, 1.0, lambda hardware: hardware.device.product_efficiency.value,
        _of_device("product_efficiency"), of_passes=True,
    ),
    FittedNumber(
        "half_rate_flops", 1.5, 1e7, 1e11, lambda hardware: hardware.device.half_rate_flops.value,
        _of_device("half_rate_flops"), of_passes=True,
    ),
    FittedNumber(
        "memory_efficiency", 0.4, 0.1, 1.0, lambda hardware: hardware.device.memory_efficiency.value,
        _of_device("memory_efficiency"), of_passes=True,
    ),
    FittedNumber(
        HOST, 1.0, 1e-7, 1e-3,
        lambda hardware: hardware.device.host_seconds_per_operation["eager"].value, _host_seconds,
        of_passes=True,
    ),
    FittedNumber(
        "host_share_per_split", 1.0, 1e-3, 0.3, lambda _hardware: 0.02, _of_software("host_share_per_split"),
        of_passes=True,
    ),
    FittedNumber(
        "inner.bytes_per_second", 0.5, 1e8, 1e12, lambda hardware: hardware.inner.bytes_per_second.value,
        _of_link("inner", "bytes_per_second"),
    ),
    FittedNumber(
        "inner.latency_seconds", 1.0, 1e-7, 1e-3, lambda hardware: hardware.inner.latency_seconds.value,
        _of_link("inner", "latency_seconds"),
    ),
    FittedNumber(
        "outer.bytes_per_second", 0.5, 1e7, 1e12, lambda hardware: hardware.outer.bytes_per_second.value,
        _of_link("outer", "bytes_per_second"),
    ),
    FittedNumber(
        "host_wait_share", 1.0, 0.02, 1.0, lambda _hardware: 0.5, _of_software("host_wait_share"), of_blocks=False
    ),
    FittedNumber(
        "loss_factor", 0.7, 0.3, 8.0, lambda _hardware: 1.0, _of_software("loss_factor"), of_passes=True,
        of_blocks=False,
    ),
    FittedNumber("step_seconds", 1.0, 1e-5, 1.0, lambda _hardware: 3e-3, _of_software("step_seconds"), of_blocks=False),
    FittedNumber("hidden_share", 1.0, 0.05, 1.0, lambda _hardware: 0.5, _of_software("hidden_share"), of_blocks=False),
)  # fmt: skip


def placed(hardware: Hardware, values: Sequence[float], source: str) -> Hardware:
    """The system with these values of the fitted numbers."""
    for number, value in zip(FITTED, values, strict=True):
        hardware = number.place(hardware, value, source)
    return hardware
